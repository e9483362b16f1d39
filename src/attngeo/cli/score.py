"""`attngeo score`: the symmetry and the directionality of the layers and heads of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.cli.common import (
    Debug,
    Format,
    Layers,
    NumHeads,
    Out,
    Stacks,
    Unproven,
    check_figure,
    one_line_errors,
    output_format,
    parse_layers,
    print_error,
    score_with_progress,
    terminal_of,
    write_figure,
    write_output,
)
from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.score_table import ScoreTable

app = typer.Typer(rich_markup_mode=None)


@app.command()
def score(
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="A folder, a file or a hub id org/name[@revision].")],
    heads: Annotated[bool, typer.Option("--heads", help="Also print a row for each head.")] = False,
    every_column: Annotated[
        bool, typer.Option("--all", help="Print every column, however wide the table becomes.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Compare with the scores published with arXiv 2502.10927.")
    ] = False,
    published_as: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME", help="Hub id of REF in the published tables; implies --published."),
    ] = None,
    stack: Stacks = None,
    layers: Layers = None,
    num_heads: NumHeads = None,
    unproven: Unproven = False,
    nulls: Annotated[bool, typer.Option(help="Compare with random weights and re-paired queries and keys.")] = True,
    folded: Annotated[
        bool | None,
        typer.Option(
            "--folded/--no-folded",
            help="Also score with the preceding normalisation folded into the weights. Default: for local files.",
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the scores to a .png, .svg or .pdf file.")
    ] = None,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Print the symmetry and the directionality of each layer and head of a checkpoint, without loading the model."""
    refs = list(dict.fromkeys(refs))
    with one_line_errors(debug):
        form = output_format(form, out)
        check_figure(figure)
        if published_as is not None:
            _check_published(published_as, refs)
        options = {
            "heads": heads or figure is not None or form == "table",  # the summary and the figure show heads too
            "nulls": nulls,
            "folded": folded,
            "num_heads": num_heads,
            "stack": tuple(stack) if stack else None,
            "layers": parse_layers(layers),
            "unproven": unproven,
        }
    tables: list[ScoreTable] = []
    frames: list[pl.DataFrame] = []
    for ref in refs:
        try:
            table = score_with_progress(ref, options)
            compare = published or published_as is not None
            frames.append(_with_published(ref, table, published_as, layers is None) if compare else table.frame)
            tables.append(table)
            for note in table.notes:
                typer.echo(f"attngeo: {note}", err=True)
        except Exception as error:
            print_error(error, ref, debug)
    if tables:
        with one_line_errors(debug):
            table = sum(tables[1:], tables[0])
            _write_scores(table, frames, heads, every_column, form, out)
            if figure is not None:
                write_figure(table.plot(), figure)
    raise typer.Exit(0 if len(tables) == len(refs) else 1 if tables else 2)


def _with_published(ref: str, table: ScoreTable, name: str | None, whole: bool) -> pl.DataFrame:
    """Return the rows of `table` with the published scores; the model's own config says which modality it has."""
    from attngeo.weights.scoring.published.comparison import compare_with_published, modality_of
    from attngeo.weights.sources.open import open_checkpoint

    with open_checkpoint(ref) as checkpoint:
        return compare_with_published(table.frame, name, modality_of(checkpoint.config), whole=whole)


def _write_scores(
    table: ScoreTable, frames: list[pl.DataFrame], heads: bool, every_column: bool, form: str, out: Path | None
) -> None:
    import polars as pl

    from attngeo.show.score_report import score_report
    from attngeo.show.tables import encode
    from attngeo.weights.scoring.published.verdict import verdicts

    frame = pl.concat(frames)
    frame = frame if heads else frame.filter(pl.col("head").is_null())
    if form == "table":
        report = score_report(frame, table.summary(), verdicts(table.frame), terminal_of(out), every_column)
        write_output(report.encode(), out)
    else:
        write_output(encode(frame, form), out)


def _check_published(name: str, refs: list[str]) -> None:
    """Raise if --published-as names no published model, or if there are several models it could stand for."""
    from attngeo.weights.scoring.published.scores import published

    if len(refs) > 1:
        raise AttngeoError(f"--published-as {name}: names one model, but {len(refs)} were given")
    published(name)
