"""Commands of the dynamics room: pre-train a model, and run the experiment that compares its starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli import Debug, _one_line, _spoken, app
from attngeo.errors import InputError

experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Questions settled over seeds.")
app.add_typer(experiment, name="experiment")


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings of the run.")],
    debug: Debug = False,
) -> None:
    """Pre-train a BERT-shaped encoder or decoder; started again after a kill it continues to the same losses."""
    with _one_line(debug):
        from attngeo.dynamics.pretrain import pretrain as trained
        from attngeo.show.progress import Bar

        with Bar(str(config)) as bar, _spoken(bar.say):
            run = trained(config, progress=bar.step)
        typer.echo(f"{run.folder}: held-out loss {run.loss:.4f} after {run.records[-1]['step']} steps")


@experiment.command()
def initialisation(
    tokens: Annotated[Path | None, typer.Option(metavar="DIR", help="Prepared token files, packed or not.")] = None,
    results: Annotated[Path | None, typer.Option(metavar="FILE", help="*.jsonl.gz that finished runs join.")] = None,
    done: Annotated[list[Path] | None, typer.Option(metavar="PATH", help="Runs finished before; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Part of the grid; repeatable.")] = None,
    start: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this start; repeatable.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Stop after these, to go on later.")] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="For runs under way.")] = Path("/tmp/attngeo-runs"),
    table: Annotated[bool, typer.Option("--table", help="Run nothing, only compare what is finished.")] = False,
    debug: Debug = False,
) -> None:
    """Does a symmetric start help? A grid of starts × learning rates × seeds as paired runs, and their comparison."""
    with _one_line(debug):
        from attngeo.dynamics.cells import cells
        from attngeo.dynamics.compare import as_text, compare, read_runs
        from attngeo.dynamics.experiment import run_grid
        from attngeo.dynamics.packed_tokens import unpacked
        from attngeo.show.progress import Bar

        known = [*(done or []), *([results] if results and (table or results.exists()) else [])]
        if not table:
            if tokens is None or results is None:
                raise InputError("--tokens and --results: both are needed to run; --table only compares")
            with Bar("experiment") as bar, _spoken(bar.say):
                run_grid(cells(group or ["core"], start), unpacked(tokens), results, work=work, done=done or [],
                         minutes=minutes, say=bar.say)  # fmt: skip
            known = [path for path in (*(done or []), results) if path.exists()]
        typer.echo(as_text(compare(read_runs(known))))
