"""Commands of the dynamics room: pre-train a model, and run the experiment that compares its starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli import Debug, Out, _check_figure, _deliver, _one_line, _parsed_layers, _spoken
from attngeo.errors import InputError

app = typer.Typer(rich_markup_mode=None)
experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Questions settled over seeds.")
app.add_typer(experiment, name="experiment")

_FORMATS = {".md": "markdown", ".csv": "csv"}


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings of the run.")],
    debug: Debug = False,
) -> None:
    """Pre-train a BERT-shaped encoder or decoder; started again after a kill it continues to the same losses."""
    with _one_line(debug):
        from attngeo.dynamics.pretrain import pretrain as trained
        from attngeo.show.progress import Bar, speaks

        with Bar(str(config)) as bar, _spoken(bar.say):
            run = trained(config, progress=bar.step)
        if speaks():
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
    with _one_line(debug):
        from attngeo.dynamics.records import FILE, read_records
        from attngeo.dynamics.track import track as tracked
        from attngeo.show.progress import Bar

        path = folder / FILE if out is None else out
        _check_figure(figure)
        try:
            with Bar(str(folder)) as bar, _spoken(bar.say):
                rows = tracked(
                    folder, path, every=every, heads=heads, num_heads=num_heads, stack=tuple(stack) if stack else None,
                    layers=_parsed_layers(layers), unproven=unproven, progress=bar.step,
                    say=lambda line: bar.say(f"attngeo: {line}"),
                )  # fmt: skip
        finally:  # what is finished is drawn, whatever stopped the rest
            if figure is not None and path.is_file() and (done := read_records(path)):
                from attngeo.show.canvas import save
                from attngeo.show.training import curves

                save(curves(done), figure)
        steps = f"{len(rows)} steps, {rows[0]['step']} to {rows[-1]['step']}," if len(rows) > 1 else "1 step"
        typer.echo(f"attngeo: {steps} in {path}", err=True)


@experiment.command()
def initialisation(
    tokens: Annotated[Path | None, typer.Option(metavar="DIR", help="Prepared token files, packed or not.")] = None,
    train: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Prepare --tokens from this text first; repeatable.")
    ] = None,
    valid: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Its held-out documents.")] = None,
    tokenizer: Annotated[str, typer.Option(metavar="FOLDER", help="Its tokenizer, or train one.")] = "train",
    vocab: Annotated[int, typer.Option(metavar="N", help="Size of one that is trained.")] = 16_384,
    results: Annotated[Path | None, typer.Option(metavar="FILE", help="*.jsonl.xz that finished runs join.")] = None,
    done: Annotated[list[Path] | None, typer.Option(metavar="PATH", help="Runs finished before; repeatable.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Part of the grid; repeatable. Default: core.")
    ] = None,
    start: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this start; repeatable.")] = None,
    lr: Annotated[list[float] | None, typer.Option(metavar="X", help="A grid of one's own; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Seeds of such a grid.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of its runs.")] = None,
    size: Annotated[str | None, typer.Option(metavar="4x256", help="Layers x width of its models.")] = None,
    objective: Annotated[str | None, typer.Option(metavar="masked|causal", help="Of its runs.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="In place of the usual; repeatable.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Stop after these, to go on later.")] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="For runs under way.")] = Path("/tmp/attngeo-runs"),
    table: Annotated[bool, typer.Option("--table", help="Run nothing, only compare what is finished.")] = False,
    against: Annotated[str, typer.Option(metavar="START", help="Compare with this start.")] = "baseline",
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw curves, forms, steps saved there.")] = None,
    form: Annotated[str | None, typer.Option("--format", metavar="table|markdown|csv", help="Of the table.")] = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Does a symmetric start help? A grid of starts × learning rates × seeds as paired runs, and their comparison."""
    with _one_line(debug):
        from attngeo.dynamics.compare import compare, read_runs
        from attngeo.show.initialisation_table import FORMATS

        form = form or _FORMATS.get(out.suffix.lower() if out else "", "table")
        if form not in FORMATS:
            raise InputError(f"--format {form}: expected one of {', '.join(FORMATS)}")
        if out is not None:
            from attngeo.show.files import check_writable

            check_writable(out)
        if figures is not None and figures.is_file():
            raise InputError(f"--figures {figures}: a file, expected a folder")
        if not table:
            if tokens is None or results is None:
                raise InputError("--tokens and --results: both are needed to run; --table only compares")
            from attngeo.dynamics.experiment import run_experiment
            from attngeo.show.progress import Bar

            with Bar("experiment") as bar, _spoken(bar.say):
                if train:
                    from attngeo.dynamics.tokens import prepare

                    prepare(tokens, train, valid or (), tokenizer=tokenizer, vocabulary=vocab, progress=bar.step)
                left = run_experiment(
                    tokens,
                    results,
                    groups=group or (),
                    starts=start or (),
                    free={"lr": lr, "seeds": seeds, "steps": steps, "size": size, "objective": objective},
                    settings=setting or (),
                    work=work,
                    done=done or (),
                    minutes=minutes,
                    say=bar.say,
                    progress=bar.step,
                )
                bar.say(f"attngeo: {left} runs left")
        runs = read_runs([*(done or ()), *([results] if results is not None else ())])
        if not runs:
            raise InputError("no finished runs to compare; name their files with --results or --done")
        starts = sorted({run.cell.start for run in runs})
        if against not in starts and against != "baseline":
            raise InputError(f"--against {against}: no finished run has this start; there are {', '.join(starts)}")
        _deliver((FORMATS[form](compare(runs, against)) + "\n").encode(), out)
        if figures is not None:
            from attngeo.show.initialisation import draw

            for path in draw(runs, figures, against):
                typer.echo(f"attngeo: wrote {path}", err=True)
