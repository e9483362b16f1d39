"""Compare two checkpoints shaped like an 8B LLaMA-3: time compared with scoring one of them, and peak memory.

Questions 1 and 2 are answered, without alignment: the change of every form and score, and the test of relatedness with
999 draws on the reduced shape. Scoring one computes the same scores, without nulls and folded norm.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench._memory import peak_bytes
from bench.scoring import HEADS, LAYERS, cost_of_scoring, print_targets, seconds_of, write_checkpoint

RUNS = 3
ROWS = LAYERS * (HEADS + 1)
NOISE = 0.1  # of the weights' norm, from the first checkpoint to the second
CHUNK = 2**24  # values changed at a time


def print_cost(folders: list[str]) -> None:
    """Score one checkpoint or compare two, and print time and peak memory as JSON.

    Runs in a process of its own, so that the peak is its own.
    """
    import attngeo

    def work() -> None:
        if len(folders) == 1:
            assert attngeo.score(folders[0], nulls=False, folded=False).frame.height == ROWS
        else:
            found = attngeo.compare(*folders)
            assert found.changes.height == ROWS and found.related.p_value == 0.001

    seconds = seconds_of(work)
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def cost(*folders: Path) -> dict[str, float]:
    """Return seconds and peak memory in bytes of scoring one checkpoint or comparing two."""
    command = [sys.executable, "-m", "bench.comparison", *map(str, folders)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def write_copy(source: Path, folder: Path) -> None:
    """Write a copy of a bfloat16 checkpoint with noise added to its values."""
    folder.mkdir()
    (folder / "config.json").write_bytes((source.parent / "config.json").read_bytes())
    rng = np.random.default_rng(1)
    with source.open("rb") as old, (folder / source.name).open("wb") as new:
        length = old.read(8)
        new.write(length + old.read(int.from_bytes(length, "little")))
        while data := old.read(2 * CHUNK):
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            values = values + np.float32(0.02 * NOISE) * rng.standard_normal(len(values), dtype=np.float32)
            new.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        a, b = Path(name, "a"), Path(name, "b")
        a.mkdir()
        write_copy(write_checkpoint(a), b)
        scored, compared = [], []
        for _ in range(RUNS):  # in turn, so that a busy moment affects both sides of the comparison
            scored.append(cost(a)["seconds"])
            compared.append(cost(a, b))
        everything = cost_of_scoring(a, everything=True)["seconds"]
    took = [one["seconds"] for one in compared]
    ratio = statistics.median(one / other for one, other in zip(took, scored, strict=True))
    peak = max(one["peak"] for one in compared)
    print(f"two models of {LAYERS} layers, {LAYERS * HEADS} heads: {statistics.median(took):.1f} s", end=" ")
    print(
        f"({', '.join(f'{seconds:.1f}' for seconds in took)}); scoring one: {statistics.median(scored):.1f} s,", end=" "
    )
    print(f"with nulls and folded norm {everything:.1f} s")
    targets = [
        (f"{ratio:.2f} × the time of scoring one", "at most 6 ×", ratio <= 6),
        (f"{peak / 1e9:.2f} GB peak memory", "under 1.5 GB", peak < 1.5e9),
    ]
    return print_targets(targets)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print_cost(sys.argv[1:])
    else:
        sys.exit(main())
