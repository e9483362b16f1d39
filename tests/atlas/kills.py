"""Fill an atlas while its processes are killed at random moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal

from tests.atlas.processes import is_running, ray_workers_of, wait_until, workers_of

ROOT = Path(__file__).resolve().parents[2]
Victim = Literal["driver", "worker"]


def contents(atlas: Path) -> dict[str, bytes]:
    """Return the files of all tables of an atlas that a reader would read."""
    return {str(path.relative_to(atlas)): path.read_bytes() for path in sorted(atlas.glob("*/*.parquet"))}


def finished(atlas: Path) -> int:
    """Return the number of models in an atlas that may be growing."""
    return sum(1 for _ in atlas.glob("models/*.parquet"))


def start_add(
    atlas: Path, names: Path, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `attngeo atlas add` for a list of models."""
    command = [sys.executable, "-m", "attngeo", "atlas", "add", str(atlas), "--list", str(names), *options]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fill_with_kills(
    atlas: Path, total: int, victims: Sequence[Victim], seed: int, start: Callable[[], subprocess.Popen[bytes]],
    ray: int | None = None,
) -> int:  # fmt: skip
    """Add models, kill processes at random moments, add again until all are there; return how many were killed.

    start: starts a process that adds all models
    ray:   the process under which the processes of Ray are found; None: the adding one starts worker processes
    """
    random, killed = Random(seed), 0
    moments = sorted(random.sample(range(1, total - 1), len(victims)))
    process: subprocess.Popen[bytes] | None = None
    try:
        for moment, victim in zip(moments, victims, strict=True):
            running = process = process if process is not None else start()
            wait_until(lambda run=running, enough=moment: finished(atlas) >= enough or run.poll() is not None)
            if running.poll() is not None:  # done before its end could be reached
                break
            workers = _workers(running, ray)
            if victim == "driver":
                running.kill()
                running.wait()
                wait_until(
                    lambda started=workers: not any(map(is_running, started))
                )  # they notice, and end by themselves
                process, killed = None, killed + 1
            elif workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                killed += 1
            else:  # it ended meanwhile
                break
        process = process if process is not None else start()
        assert process.wait(300) == 0
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
    return killed


def _workers(process: subprocess.Popen[bytes], ray: int | None) -> list[int]:
    """Return the processes that work for an adding one, as soon as there are any; none if it has ended."""
    found: list[int] = []

    def there_are_some() -> bool:
        found[:] = workers_of(process.pid) if ray is None else ray_workers_of(ray)
        return bool(found) or process.poll() is not None

    wait_until(there_are_some)
    return found
