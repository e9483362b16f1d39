"""`attngeo report`: models and results as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attngeo.cli.common import one_line_errors, parse_layers, printed_warnings
from attngeo.cli.options import (
    Audio,
    Debug,
    Device,
    Image,
    Layers,
    NumHeads,
    Stack,
    Stage,
    Target,
    Text,
    TextFile,
    Truncate,
    Unproven,
)
from attngeo.cli.organization import read_content
from attngeo.errors import InputError
from attngeo.io.names import joined_names

app = typer.Typer(rich_markup_mode=None)


@app.command()
def report(
    refs: Annotated[
        list[str],
        typer.Argument(metavar="REF", help="Models (folders, files or hub ids), or files with saved results."),
    ],
    text: Text = None,
    text_file: TextFile = None,
    image: Image = None,
    audio: Audio = None,
    against: Annotated[
        str | None, typer.Option(metavar="REF", help="Also show what changed between this model and the others.")
    ] = None,
    stage: Stage = "probabilities",
    stack: Stack = None,
    layers: Layers = None,
    target: Target = None,
    truncate: Truncate = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also compute softmax invariance and the control of permuted values (slow)."),
    ] = False,
    num_heads: NumHeads = None,
    unproven: Unproven = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of the controls.")] = 0,
    device: Device = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    debug: Debug = False,
) -> None:
    """Write one HTML file that shows models and their attention on an input; it opens offline."""
    with one_line_errors(debug):
        from attngeo.io.progress import ProgressBar

        option, inputs = _read_input({"--text": text, "--text-file": text_file, "--image": image, "--audio": audio})
        chosen: dict[str, Any] = {"stack": stack, "layers": parse_layers(layers), "target": target}
        if option == "--audio":
            chosen["sampling_rate"], inputs = inputs
        with ProgressBar("report") as bar, printed_warnings(bar.say):
            from attngeo.reporting.report import report
            from attngeo.reporting.saved import load_given

            written = report(
                [load_given(ref) for ref in refs],
                out,
                inputs=inputs,
                against=against,
                stage=stage,
                truncate=truncate,
                full=full,
                num_heads=num_heads,
                unproven=unproven,
                seed=seed,
                device=device,
                progress=bar.step,
                **chosen,
            )
        typer.echo(f"attngeo: wrote {written} ({written.stat().st_size / 1e6:.1f} MB)", err=True)


def _read_input(given: dict[str, str | Path | None]) -> tuple[str | None, Any]:
    """Return the input option that was given and its content, or None twice."""
    options = {option: value for option, value in given.items() if value is not None}
    if len(options) > 1:
        raise InputError(f"input: expected at most one of {', '.join(given)}; {joined_names(options)} were given")
    for option, value in options.items():
        return option, read_content(option, value)
    return None, None
