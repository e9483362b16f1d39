"""`attngeo compare`: what changed between two models, are they related, how far apart are they."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.cli.common import (
    ComparisonFigure,
    NumHeads,
    Unproven,
    check_figure,
    command,
    output_format,
    print_text,
    progress_bar,
    read_words,
    terminal_of,
    write_figure,
    write_output,
)
from attngeo.errors import InputError

if TYPE_CHECKING:
    from attngeo.applications.compare.comparison import ModelComparison, ModelMap

app = typer.Typer(rich_markup_mode=None)


@command(app)
def compare(
    *,
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="Two or more models: folders, files or hub ids.")],
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Input for the distance: this text; may be repeated.")
    ] = None,
    text_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Input for the distance: the text in this file (UTF-8); may be repeated."),
    ] = None,
    align: Annotated[
        bool, typer.Option("--align", help="First undo a permutation of the hidden dimensions, by token embeddings.")
    ] = False,
    draws: Annotated[
        int, typer.Option(metavar="N", help="Permutations of the basis, at least 99; unused with --align.")
    ] = 999,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of the null.")] = 0,
    heads: Annotated[bool, typer.Option("--heads", help="Print all heads, not only those that changed most.")] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Shorten a text that is longer than a model's context window.")
    ] = False,
    stack: Annotated[str | None, typer.Option(metavar="S", help="Compare only this stack.")] = None,
    num_heads: NumHeads = None,
    unproven: Unproven = False,
    figure: ComparisonFigure = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the result: .parquet (.json for three models or more) loads again; "
            ".txt holds the report, .md, .tex and .csv the table of changes, .json both.",
        ),
    ] = None,
) -> None:
    """Say what changed between two models, whether they are related and, on a text, how far apart they are."""
    if len(refs) < 2:
        raise InputError(f"{refs[0]}: one model only, expected at least two to compare")
    form = "table" if out is None else output_format(None, out)
    if out is not None and len(refs) > 2 and out.suffix != ".json":
        raise InputError(f"--out {out}: the distances of {len(refs)} models are saved as .json")
    check_figure(figure)
    texts = [*(text or ()), *(read_words(path) for path in text_file or ())]
    options: dict[str, Any] = {"inputs": texts or None, "align": align, "draws": draws, "seed": seed}
    options |= {"truncate": truncate, "stack": stack, "num_heads": num_heads, "unproven": unproven}

    from attngeo.applications.compare.compare import compare, compare_all

    with progress_bar("compare") as bar:
        options["progress"] = bar.step
        result = compare(*refs, **options) if len(refs) == 2 else compare_all(refs, **options)
    _print(result, None if heads else 20, out, form)
    if figure is not None:
        write_figure(result.plot(), figure)


def _print(result: ModelComparison | ModelMap, heads: int | None, out: Path | None, form: str) -> None:
    """Print the report; write the result, or its table, to `out`."""
    from attngeo.applications.compare.comparison import ModelComparison
    from attngeo.io.archive import save_json
    from attngeo.show.comparison import comparison_report, model_map_report
    from attngeo.show.tables import encode

    if isinstance(result, ModelComparison):
        report = comparison_report(result, heads)
        print_text(comparison_report(result, heads, terminal_of().width))
    else:
        report = model_map_report(result)
        print_text(report)
    if out is None:
        return
    if not isinstance(result, ModelComparison) or form == "parquet":
        result.save(out)
        typer.echo(f"attngeo: wrote {out}", err=True)
    elif form == "table":
        write_output(report.encode(), out)
    elif form == "json":
        save_json(out, "model comparison", result.about() | {"changes": result.changes.to_dicts()}, of=result)
        typer.echo(f"attngeo: wrote {out}", err=True)
    else:
        write_output(encode(result.changes, form), out)
