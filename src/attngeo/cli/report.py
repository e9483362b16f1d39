"""`attngeo report` and `attngeo explore`: models and results as one HTML file, and a page that organises any text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import (
    Captured,
    Device,
    Input,
    NumHeads,
    Stack,
    Stage,
    Truncate,
    Unproven,
    command,
    print_text,
    printed_warnings,
    progress_bar,
)

app = typer.Typer(rich_markup_mode=None)


@command(app)
def report(
    *,
    refs: Annotated[
        list[str],
        typer.Argument(metavar="REF", help="Models (folders, files or hub ids), or files with saved results."),
    ],
    given: Input,
    against: Annotated[
        str | None, typer.Option(metavar="REF", help="Also show what changed between this model and the others.")
    ] = None,
    stage: Stage = "probabilities",
    captured: Captured,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also compute softmax invariance and the control of permuted values (slow)."),
    ] = False,
    num_heads: NumHeads = None,
    unproven: Unproven = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of the controls.")] = 0,
    device: Device = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML file that shows models and their attention on an input; it opens offline."""
    options = given.arguments() | captured.arguments()
    with progress_bar("report") as bar:
        from attngeo.reporting.report import report
        from attngeo.reporting.results import load_given

        written = report(
            [load_given(ref) for ref in refs],
            out,
            against=against,
            stage=stage,
            full=full,
            num_heads=num_heads,
            unproven=unproven,
            seed=seed,
            device=device,
            progress=bar.step,
            **options,
        )
    typer.echo(f"attngeo: wrote {written} ({written.stat().st_size / 1e6:.1f} MB)", err=True)


@command(app)
def explore(
    *,
    ref: Annotated[str, typer.Argument(metavar="REF", help="A model folder, a file or a hub id.")],
    port: Annotated[int, typer.Option(metavar="P", min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on. The default accepts only requests from this machine."
        ),
    ] = "127.0.0.1",
    stage: Stage = "probabilities",
    stack: Stack = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Serve a page where you enter a text and see the organised attention of a model; Ctrl-C stops it."""
    from attngeo.reporting.explorer import LOOPBACK
    from attngeo.reporting.explorer import explore as serve

    if host not in LOOPBACK:
        typer.echo(f"attngeo: other machines can reach the page at {host} if they know its address", err=True)
    typer.echo(f"attngeo: loading {ref}", err=True)

    def say(text: str) -> None:
        print_text(f"attngeo: {text}\n")

    with printed_warnings(lambda line: typer.echo(line, err=True)):
        serve(ref, port=port, host=host, stage=stage, stack=stack, truncate=truncate, device=device, say=say)
