"""The initialisation experiment: a grid of paired runs in slices of time, each finished run kept at once.

python -m experiments.initialisation.run prepare --train T.txt.xz --valid V.txt.xz --into FOLDER
python -m experiments.initialisation.run run --tokens FOLDER --results OUT/runs.jsonl.xz --group core --minutes 9
python -m experiments.initialisation.run table RESULTS...
python -m experiments.initialisation.run speed --tokens FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttngeoError, InputError
from attngeo.io.atomic import check_writable, write_errors
from experiments.initialisation.grid import GROUPS, INCIDENTAL, Cell, cells, free_grid
from experiments.initialisation.statistics import Compared, Finished, append_run, compare, read_runs

if TYPE_CHECKING:
    from attngeo.dynamics.data.tokens import Tokens

Say = Callable[[str], None]
Progress = Callable[[int, int | None], None]
WORK = Path("/tmp/attngeo-runs")  # runs under way


def run_grid(
    wanted: Sequence[Cell],
    tokens: Path,
    results: Path,
    *,
    work: Path = WORK,
    done: Iterable[Path] = (),
    minutes: float | None = None,
    say: Say = print,
    progress: Progress | None = None,
    **incidental: Any,
) -> int:
    """Run the cells that are not finished yet, in order; returns how many are left.

    results     file the finished runs are appended to; those in it and in `done` are skipped
    work        folder for runs under way: what a slice of time cut off continues from there
    minutes     after these no new step is taken; a run that would not fit is not begun once its kind has been timed
    progress    called with (steps done, steps in all)
    incidental  `compile`, `checkpoints`
    """
    from attngeo.dynamics.data.tokens import open_tokens
    from attngeo.dynamics.monitoring.records import read_records
    from attngeo.dynamics.pretraining.pretrain import TrainingError, train
    from attngeo.dynamics.pretraining.processes import team

    opened, mine = open_tokens(tokens), team()
    earlier = read_runs([path for path in (*done, results) if path.exists()])
    _check_tokens(earlier, opened)
    with write_errors(results):  # before the first run, not after it
        results.parent.mkdir(parents=True, exist_ok=True)
        check_writable(results)
    finished = {run.cell.key for run in earlier}
    left = [cell for cell in wanted if cell.key not in finished]
    say(f"{len(wanted)} runs, {len(wanted) - len(left)} finished before")
    began = time.monotonic()
    deadline = began + 60 * minutes if minutes is not None else float("inf")
    took: dict[tuple[Any, ...], float] = {}
    before, all_steps = 0, sum(cell.steps for cell in left)

    def moved(step: int, _: int | None) -> None:
        if progress is not None:
            progress(before + step, all_steps)

    for number, cell in enumerate(left):
        now = time.monotonic()
        kind = (cell.objective, cell.size, cell.steps, cell.other)  # what decides how long a run takes
        if mine.anyone(now + took.get(kind, 0.0) > deadline):
            say(f"time is up after {(now - began) / 60:.1f} minutes")
            return len(left) - number
        # A tokenizer larger than the usual vocabulary makes a larger model.
        config = cell.config(str(work / cell.key), str(tokens), **incidental)
        config = config.with_(vocab=max(config.vocab, opened.vocabulary))
        kept = Path(config.out) / "finished.jsonl.xz"
        if kept.exists():  # finished before, but the results could not be written
            (run,) = read_runs([kept])
            _check_tokens([run], opened)
        else:
            diverged = {}
            try:
                trained = train(config, opened, mine, progress=moved, stop=lambda: time.monotonic() > deadline)
                records = trained.records
                if not trained.finished:
                    say(f"{cell.key}: stopped at step {records[-1]['step']}, continues from {config.out}")
                    return len(left) - number
            except TrainingError as error:  # a run that diverges is a finding; the others go on
                records = tuple(read_records(Path(config.out) / "metrics.jsonl"))
                diverged = {"diverged": error.step}
            seconds = time.monotonic() - now
            facts = _facts(mine.device, seconds, incidental) | {"tokens": opened.digest} | diverged
            run = Finished(cell, tuple(_thinned(records)), facts)
            took[kind] = seconds
        before += cell.steps
        if mine.rank == 0:
            if not kept.exists():
                append_run(kept, run)
            append_run(results, run)
            shutil.rmtree(config.out)
        mine.wait()
        say(_told(run))
    return 0


def _check_tokens(runs: Iterable[Finished], tokens: Tokens) -> None:
    """Raise for a run of another corpus; older ones do not say."""
    for run in runs:
        if run.facts.get("tokens", tokens.digest) != tokens.digest:
            raise InputError(f"{tokens.folder}: {run.cell.key} was trained on other tokens; "
                             "name other results for these, and another work folder")  # fmt: skip


def _thinned(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Single heads, most of what a record holds, at every tenth evaluation and the last; everything else at all."""
    for number, row in enumerate(records):
        heads = number % 10 == 0 or number == len(records) - 1
        yield {key: value for key, value in row.items() if heads or not key.startswith("head_")}


def _told(run: Finished) -> str:
    if run.diverged is not None:
        return f"{run.cell.key}: diverged, no loss from step {run.diverged} on"
    last = run.records[-1]
    return (f"{run.cell.key}: loss {run.loss:.4f}, {run.facts['seconds']:.1f} s, {last['steps_per_second']} steps/s, "
            f"symmetry {last['symmetry']}, max logit {last['max_logit']}")  # fmt: skip


def _facts(device: Any, seconds: float, incidental: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "seconds": round(seconds, 1), "settings": dict(incidental)}


def run_experiment(
    tokens: Path,
    results: Path,
    *,
    groups: Sequence[str] = (),
    starts: Sequence[str] = (),
    free: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    **how: Any,
) -> int:
    """`run_grid` on a grid named in words; returns how many runs are left.

    groups    parts of the experiment's own grid ("core" where nothing is named)
    free      a grid of one's own instead: any of lr, seeds, steps, size, objective
    starts    of either; all of a group, or baseline and unit symmetric
    settings  KEY=VALUE in place of the usual ones
    """
    from experiments.initialisation.packed_tokens import unpacked

    named = dict(_named(setting) for setting in settings)
    free = {key: value for key, value in (free or {}).items() if value not in (None, [])}
    if free and groups:
        raise InputError(f"{', '.join(free)}: a grid of one's own, cannot go with group {' '.join(groups)}")
    if free:
        free = {"seeds": 3, **free}
        wanted = free_grid(starts or ("baseline", "unit symmetric"), free.pop("lr", (5e-4,)), settings=named, **free)
    else:
        wanted = cells(groups or ["core"], starts or None, named)
    incidental = {key: value for key, value in named.items() if key in INCIDENTAL}
    return run_grid(wanted, unpacked(tokens), results, **how, **incidental)


def _named(setting: str) -> tuple[str, Any]:
    """KEY=VALUE as in a config, where text may go without its quotes."""
    key, equals, value = (part.strip() for part in setting.partition("="))
    if not (equals and key and value):
        raise InputError(f"set {setting}: expected KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def compared(paths: Iterable[Path]) -> list[Compared]:
    """The comparison of all runs finished in these files and folders; those that are not there hold none."""
    return compare(read_runs([path for path in paths if path.exists()]))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.initialisation.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="tokenise a corpus and pack it small")
    one.add_argument("--train", nargs="+", required=True)
    one.add_argument("--valid", nargs="+", default=[])
    one.add_argument("--into", type=Path, required=True)
    one.add_argument("--tokenizer", default="train")
    one.add_argument("--vocab", type=int, default=16_384)
    one.add_argument("--pack", type=Path, help="also write the tokens here, compressed")
    one = commands.add_parser("run", help="run what is not finished of these groups")
    one.add_argument("--tokens", type=Path, required=True, help="folder of token files, packed or not")
    one.add_argument("--results", type=Path, required=True, help="FILE.jsonl.xz, appended to")
    one.add_argument("--done", type=Path, nargs="*", default=[], help="files or folders of runs finished before")
    one.add_argument("--work", type=Path, default=WORK)
    one.add_argument("--group", nargs="+", default=[], help=f"{', '.join(GROUPS)}; default: core")
    one.add_argument("--start", nargs="+", default=[], help="only these starts")
    one.add_argument("--minutes", type=float)
    one.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings in place of the grid's")
    one = commands.add_parser("table", help="compare the starts of finished runs")
    one.add_argument("results", type=Path, nargs="+")
    one.add_argument("--format", default="table", choices=("table", "markdown", "csv"))
    one.add_argument("--figures", type=Path, help="also draw into this folder")
    one = commands.add_parser("speed", help="steps a second and share of the measured matmul rate")
    one.add_argument("--tokens", type=Path, required=True)
    one.add_argument("--size", nargs="+", default=["4x256", "12x768"])
    one.add_argument("--objective", nargs="+", default=["masked"])
    one.add_argument("--steps", type=int, default=400)
    one.add_argument("--profile", action="store_true", help="also the kernels that take the time")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments().parse_args(arguments)
    try:
        return _dispatch(asked)
    except AttngeoError as error:
        print(f"attngeo: error: {error}", file=sys.stderr)
        return 2


def _dispatch(asked: argparse.Namespace) -> int:
    from experiments.initialisation.table import FORMATS, as_text

    def say(line: str) -> None:
        print(line, flush=True)

    if asked.command == "prepare":
        from attngeo.dynamics.data.tokens import prepare
        from experiments.initialisation.packed_tokens import pack

        tokens = prepare(asked.into, asked.train, asked.valid, tokenizer=asked.tokenizer, vocabulary=asked.vocab)
        say(str(tokens))
        if asked.pack:
            say(f"packed: {pack(tokens, asked.pack) / 2**20:.1f} MiB in {asked.pack}")
    elif asked.command == "table":
        say(FORMATS[asked.format](compared(asked.results)))
        if asked.figures:
            from experiments.initialisation.report import draw

            draw(read_runs(asked.results), asked.figures)
    elif asked.command == "speed":
        from bench.pretraining_gpu import measure
        from experiments.initialisation.packed_tokens import unpacked

        measure(unpacked(asked.tokens), asked.size, asked.objective, asked.steps, asked.profile, say)
    else:
        left = run_experiment(asked.tokens, asked.results, groups=asked.group, starts=asked.start, settings=asked.set,
                              work=asked.work, done=asked.done, minutes=asked.minutes, say=say)  # fmt: skip
        say(f"{left} runs left")
        table = compared([*asked.done, asked.results])
        if table:
            say(as_text(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
