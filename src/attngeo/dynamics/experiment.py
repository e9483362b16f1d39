"""The initialisation experiment: a grid of paired runs in slices of time, each finished run kept at once.

python -m attngeo.dynamics.experiment prepare --train T.txt.xz --valid V.txt.xz --into FOLDER
python -m attngeo.dynamics.experiment run --tokens FOLDER --results OUT/runs.jsonl.gz --group core --minutes 9
python -m attngeo.dynamics.experiment table RESULTS...
python -m attngeo.dynamics.experiment speed --tokens FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attngeo.dynamics.cells import GROUPS, Cell, cells
from attngeo.dynamics.compare import Finished, append_run, as_text, compare, read_runs
from attngeo.errors import AttngeoError

Say = Callable[[str], None]


def run_grid(
    wanted: Sequence[Cell],
    tokens: Path,
    results: Path,
    *,
    work: Path,
    done: Iterable[Path] = (),
    minutes: float | None = None,
    say: Say = print,
    **settings: Any,
) -> int:
    """Run the cells that are not finished yet, in order; returns how many are left.

    results   file the finished runs are appended to; those in it and in `done` are skipped
    work      folder for runs under way: what a slice of time cut off continues from there
    minutes   after these no new step is taken; a run that would not fit is not begun once its kind has been timed
    settings  of every run, in place of those of its cell
    """
    from attngeo.dynamics.pretrain import train
    from attngeo.dynamics.processes import team
    from attngeo.dynamics.tokens import open_tokens

    opened, mine = open_tokens(tokens), team()
    finished = {run.cell.key: run for run in read_runs([path for path in (*done, results) if path.exists()])}
    left = [cell for cell in wanted if cell.key not in finished]
    say(f"{len(wanted)} runs, {len(wanted) - len(left)} finished before")
    began = time.monotonic()
    deadline = began + 60 * minutes if minutes is not None else float("inf")
    took: dict[tuple[Any, ...], float] = {}
    for number, cell in enumerate(left):
        now = time.monotonic()
        kind = (cell.objective, cell.size, cell.steps)
        if now + took.get(kind, 0.0) > deadline:
            say(f"time is up after {(now - began) / 60:.1f} minutes")
            return len(left) - number
        config = cell.config(str(work / cell.key), str(tokens), **settings)
        try:
            run = train(config, opened, mine, stop=lambda: time.monotonic() > deadline)
        except AttngeoError as error:  # a run that diverges is a finding; the others go on
            say(f"{cell.key}: {error}")
            continue
        seconds = time.monotonic() - now
        if not run.finished:
            say(f"{cell.key}: stopped at step {run.records[-1]['step']}, continues from {config.out}")
            return len(left) - number
        took[kind] = seconds
        if mine.rank == 0:
            append_run(
                results, Finished(cell, tuple(dict(row) for row in run.records), _facts(mine.device, seconds, settings))
            )
            shutil.rmtree(config.out)
        last = run.records[-1]
        say(f"{cell.key}: loss {run.loss:.4f}, {seconds:.1f} s, {last['steps_per_second']} steps/s, "
            f"symmetry {last['symmetry']}, max logit {last['max_logit']}")  # fmt: skip
    return 0


def _facts(device: Any, seconds: float, settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "seconds": round(seconds, 1), "settings": settings}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attngeo.dynamics.experiment", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="tokenise a corpus and pack it small")
    one.add_argument("--train", nargs="+", required=True)
    one.add_argument("--valid", nargs="+", default=[])
    one.add_argument("--into", type=Path, required=True)
    one.add_argument("--vocab", type=int, default=16_384)
    one.add_argument("--pack", type=Path, help="also write the tokens here, compressed")
    one = commands.add_parser("run", help="run what is not finished of these groups")
    one.add_argument("--tokens", type=Path, required=True, help="folder of token files, packed or not")
    one.add_argument("--results", type=Path, required=True, help="FILE.jsonl.gz, appended to")
    one.add_argument("--done", type=Path, nargs="*", default=[], help="files or folders of runs finished before")
    one.add_argument("--work", type=Path, default=Path("/tmp/attngeo-runs"))
    one.add_argument("--group", nargs="+", default=["core"], help=", ".join(GROUPS))
    one.add_argument("--start", nargs="+", help="only these starts")
    one.add_argument("--minutes", type=float)
    one.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings in place of the grid's")
    one = commands.add_parser("table", help="compare the starts of finished runs")
    one.add_argument("results", type=Path, nargs="+")
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
    import tomllib

    from attngeo.dynamics.packed_tokens import pack, unpacked

    def say(line: str) -> None:
        print(line, flush=True)

    if asked.command == "prepare":
        from attngeo.dynamics.tokens import prepare

        tokens = prepare(asked.into, asked.train, asked.valid, vocabulary=asked.vocab)
        say(str(tokens))
        if asked.pack:
            say(f"packed: {pack(tokens, asked.pack) / 2**20:.1f} MiB in {asked.pack}")
    elif asked.command == "table":
        say(as_text(compare(read_runs(asked.results))))
    elif asked.command == "speed":
        from attngeo.dynamics.speed import measure

        measure(unpacked(asked.tokens), asked.size, asked.objective, asked.steps, asked.profile, say)
    else:
        settings: dict[str, Any] = tomllib.loads("\n".join(asked.set))
        wanted = cells(asked.group, asked.start)
        left = run_grid(wanted, unpacked(asked.tokens), asked.results, work=asked.work, done=asked.done,
                        minutes=asked.minutes, say=say, **settings)  # fmt: skip
        say(f"{left} runs left")
        runs = read_runs([path for path in (*asked.done, asked.results) if path.exists()])
        if runs:
            say(as_text(compare(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
