"""Commands of the dynamics room: pre-train a model, and run the experiment that compares its starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import Debug, check_figure, one_line_errors, parsed_layers, spoken_warnings

app = typer.Typer(rich_markup_mode=None)


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings of the run.")],
    debug: Debug = False,
) -> None:
    """Pre-train a BERT-shaped encoder or decoder; started again after a kill it continues to the same losses."""
    with one_line_errors(debug):
        from attngeo.dynamics.pretraining.pretrain import pretrain as trained
        from attngeo.io.progress import ProgressBar, is_main_process

        with ProgressBar(str(config)) as bar, spoken_warnings(bar.say):
            run = trained(config, progress=bar.step)
        if is_main_process():
            typer.echo(f"{run.folder}: held-out loss {run.loss:.4f} after {run.config.steps} steps")


@app.command()
def track(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN_FOLDER", help="Holds checkpoint-N or step-N, folders or files.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSONL, one step a line. Default: attngeo.jsonl in RUN_FOLDER.")
    ] = None,
    every: Annotated[int, typer.Option(metavar="N", help="Only steps that are multiples of N.")] = 1,
    heads: Annotated[bool, typer.Option(help="The heads too, not only the layers.")] = True,
    stack: Annotated[list[str] | None, typer.Option(metavar="S", help="Only this stack; may be repeated.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="0-5,8", help="Only these layers.")] = None,
    num_heads: Annotated[int | None, typer.Option(metavar="N", help="Head count, where there is no config.")] = None,
    unproven: Annotated[bool, typer.Option("--unproven", help="Score layouts never checked on a live model.")] = False,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves: png, svg or pdf.")] = None,
    debug: Debug = False,
) -> None:
    """Score the checkpoints of a run, in order of step; started again it goes on with those that are new."""
    with one_line_errors(debug):
        from attngeo.dynamics.monitoring.records import FILE, read_records
        from attngeo.dynamics.monitoring.track import track as tracked
        from attngeo.io.progress import ProgressBar

        path = folder / FILE if out is None else out
        check_figure(figure)
        try:
            with ProgressBar(str(folder)) as bar, spoken_warnings(bar.say):
                rows = tracked(
                    folder, path, every=every, heads=heads, num_heads=num_heads, stack=tuple(stack) if stack else None,
                    layers=parsed_layers(layers), unproven=unproven, progress=bar.step,
                    say=lambda line: bar.say(f"attngeo: {line}"),
                )  # fmt: skip
        finally:  # what is finished is drawn, whatever stopped the rest
            if figure is not None and path.is_file() and (done := read_records(path)):
                from attngeo.show import save_figure, training_figure

                save_figure(training_figure(done), figure)
        steps = f"{len(rows)} steps, {rows[0]['step']} to {rows[-1]['step']}," if len(rows) > 1 else "1 step"
        typer.echo(f"attngeo: {steps} in {path}", err=True)
