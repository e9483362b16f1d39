"""`attngeo pretrain` and `attngeo track`: train a model, and score the checkpoints of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import Scored, check_figure, command, print_text, progress_bar, write_figure

app = typer.Typer(rich_markup_mode=None)


@command(app)
def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="File with the settings of the run.")],
) -> None:
    """Pre-train a BERT, ModernBERT or LLaMA; the same command continues an interrupted run exactly."""
    from attngeo import pretrain
    from attngeo.io.progress import is_main_process

    with progress_bar(str(config)) as bar:
        run = pretrain(config, progress=bar.step)
    if is_main_process():
        print_text(f"{run.folder}: held-out loss {run.loss:.4f} after {run.config.steps} steps\n")


@command(app)
def track(
    *,
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN_FOLDER", help="Holds checkpoints named checkpoint-N or step-N, folders or files."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSONL file, one line per step. Default: attngeo.jsonl in RUN_FOLDER."),
    ] = None,
    every: Annotated[int, typer.Option(metavar="N", help="Score only steps that are multiples of N.")] = 1,
    heads: Annotated[bool, typer.Option(help="Also record each head.")] = True,
    where: Scored,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the scores over training to a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Score the checkpoints of a training run in order of step; the same command continues with new ones."""
    from attngeo.training.monitoring.records import RECORDS_FILE, read_records
    from attngeo.training.monitoring.track import track

    path = folder / RECORDS_FILE if out is None else out
    check_figure(figure)
    try:
        with progress_bar(str(folder)) as bar:

            def say(line: str) -> None:
                bar.say(f"attngeo: {line}")

            records = track(folder, path, every=every, heads=heads, progress=bar.step, say=say, **where.arguments())
    finally:  # finished steps are drawn even if an error stopped the others
        if figure is not None and path.is_file() and (done := read_records(path)):
            from attngeo.show.training import training_figure

            write_figure(training_figure(done), figure)
    first, last = records[0]["step"], records[-1]["step"]
    steps = f"{len(records)} steps, {first} to {last}," if len(records) > 1 else "1 step"
    typer.echo(f"attngeo: {steps} in {path}", err=True)
