"""`attngeo explore`: the organised attention of a model on any text, in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.cli.common import one_line_errors, print_text, printed_warnings
from attngeo.cli.options import Debug, Device, Stack, Stage, Truncate

app = typer.Typer(rich_markup_mode=None)


@app.command()
def explore(
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
    debug: Debug = False,
) -> None:
    """Serve a page where you enter a text and see the organised attention of a model; Ctrl-C stops it."""
    with one_line_errors(debug):
        from attngeo.reporting.explorer.server import LOOPBACK
        from attngeo.reporting.explorer.server import explore as serve

        if host not in LOOPBACK:
            typer.echo(f"attngeo: other machines can reach the page at {host} if they know its address", err=True)
        typer.echo(f"attngeo: loading {ref}", err=True)
        with printed_warnings(lambda line: typer.echo(line, err=True)):
            serve(
                ref,
                port=port,
                host=host,
                stage=stage,
                stack=stack,
                truncate=truncate,
                device=device,
                say=lambda text: print_text(f"attngeo: {text}\n"),
            )
