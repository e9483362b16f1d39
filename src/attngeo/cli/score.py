"""`attngeo score` and `attngeo published`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.cli.common import (
    Debug,
    Format,
    Out,
    check_figure,
    checked_format,
    complain,
    deliver,
    draw,
    one_line_errors,
    parsed_layers,
    scored,
)
from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.table import ScoreTable

app = typer.Typer(rich_markup_mode=None)


@app.command()
def score(
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="A folder, a file, or a hub id org/name[@rev].")],
    heads: Annotated[bool, typer.Option("--heads", help="Show the heads, not only the layers.")] = False,
    published: Annotated[bool, typer.Option("--published", help="Set beside the published figures.")] = False,
    published_as: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="The published model REF is; implies --published.")
    ] = None,
    stack: Annotated[list[str] | None, typer.Option(metavar="S", help="Only this stack; may be repeated.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="0-5,8", help="Only these layers.")] = None,
    num_heads: Annotated[int | None, typer.Option(metavar="N", help="Head count, where there is no config.")] = None,
    unproven: Annotated[bool, typer.Option("--unproven", help="Score layouts never checked on a live model.")] = False,
    nulls: Annotated[bool, typer.Option(help="Compare with chance.")] = True,
    folded: Annotated[
        bool | None, typer.Option("--folded/--no-folded", help="Also with the norm folded in. Default: if local.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the scores: png, svg or pdf.")] = None,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Symmetry and directionality of every layer and head, without loading the model."""
    refs = list(dict.fromkeys(refs))
    with one_line_errors(debug):
        form = checked_format(form, out)
        check_figure(figure)
        if published_as is not None:
            _check_published(published_as, refs)
        options = {
            "heads": heads or figure is not None or form == "table",  # the summary and the figure show heads too
            "nulls": nulls,
            "folded": folded,
            "num_heads": num_heads,
            "stack": tuple(stack) if stack else None,
            "layers": parsed_layers(layers),
            "unproven": unproven,
        }
    tables: list[ScoreTable] = []
    frames: list[pl.DataFrame] = []
    for ref in refs:
        try:
            table = scored(ref, options)
            compare = published or published_as is not None
            frames.append(_beside(ref, table, published_as, layers is None) if compare else table.frame)
            tables.append(table)
            for note in table.notes:
                typer.echo(f"attngeo: {note}", err=True)
        except Exception as error:
            complain(error, ref, debug)
    if tables:
        with one_line_errors(debug):
            table = sum(tables[1:], tables[0])
            _show_scores(table, frames, heads, form, out)
            if figure is not None:
                draw(table.plot(), figure)
    raise typer.Exit(0 if len(tables) == len(refs) else 1 if tables else 2)


@app.command()
def published(
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only hub ids containing this.")] = None,
    family: Annotated[str | None, typer.Option(metavar="TEXT", help="Only families containing this.")] = None,
    modality: Annotated[str | None, typer.Option(metavar="language|vision|audio", help="Only this modality.")] = None,
    stack: Annotated[str | None, typer.Option(metavar="encoder|decoder", help="Only this stack.")] = None,
    caution: Annotated[
        bool | None, typer.Option("--caution/--no-caution", help="Only figures (not) to be trusted.")
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Every layer, not the median of a stack.")] = False,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """The figures published with arXiv 2502.10927, with a caution where they are not what they claim to be."""
    with one_line_errors(debug):
        form = checked_format(form, out)
        from attngeo.show.tables import encode
        from attngeo.weights.scoring.published import listed

        frame = listed(model=model, family=family, modality=modality, stack=stack, caution=caution, layers=layers)
        if not frame.height:
            raise AttngeoError("no published model matches; `attngeo published` lists them all")
        deliver(encode(frame, form), out)


def _beside(ref: str, table: ScoreTable, name: str | None, whole: bool) -> pl.DataFrame:
    """The table's rows with the published figures; what the model reads is asked of its own configuration."""
    from attngeo.weights.scoring.published import beside, modality
    from attngeo.weights.sources.open import open_checkpoint

    with open_checkpoint(ref) as checkpoint:
        return beside(table.frame, name, modality(checkpoint.config), whole=whole)


def _show_scores(table: ScoreTable, frames: list[pl.DataFrame], heads: bool, form: str, out: Path | None) -> None:
    import polars as pl

    from attngeo.show.score_report import report
    from attngeo.show.tables import encode

    frame = pl.concat(frames)
    frame = frame if heads else frame.filter(pl.col("head").is_null())
    if form == "table":
        terminal = out is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else None
        deliver(report(frame, table.summary(), width).encode(), out)
    else:
        deliver(encode(frame, form), out)


def _check_published(name: str, refs: list[str]) -> None:
    from attngeo.weights.scoring.published import published

    if len(refs) > 1:
        raise AttngeoError(f"--published-as {name}: names one model, {len(refs)} were given")
    published(name)
