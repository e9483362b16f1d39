"""`attngeo published`: the scores published with arXiv 2502.10927."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.cli.common import one_line_errors, output_format, write_output, write_report
from attngeo.cli.options import Debug, Format, Out, PerLayer
from attngeo.errors import AttngeoError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def published(
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only hub ids that contain TEXT.")] = None,
    family: Annotated[str | None, typer.Option(metavar="TEXT", help="Only families that contain TEXT.")] = None,
    modality: Annotated[str | None, typer.Option(metavar="language|vision|audio", help="Only this modality.")] = None,
    stack: Annotated[str | None, typer.Option(metavar="encoder|decoder", help="Only this stack.")] = None,
    caution: Annotated[
        bool | None, typer.Option("--caution/--no-caution", help="Only models with (without) a caution.")
    ] = None,
    layers: PerLayer = False,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Print the scores published with arXiv 2502.10927, with a caution where they are known to be wrong."""
    with one_line_errors(debug):
        form = output_format(form, out)
        from attngeo.show.score_report import published_report
        from attngeo.show.tables import encode
        from attngeo.weights.scoring.published.scores import list_published

        frame = list_published(
            model=model, family=family, modality=modality, stack=stack, caution=caution, layers=layers
        )
        if not frame.height:
            raise AttngeoError("no published model matches; `attngeo published` lists them all")
        if form == "table":
            write_report(published_report(frame), out)
        else:
            write_output(encode(frame, form), out)
