"""Organising against the plain way, a large tensor against a smaller one, Haar transforms against a copy."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from attngeo.io import threads
from attngeo.organization import Tree, organize, planted
from attngeo.organization.haar.transform import forward
from bench._questionnaire import plain_organize

Result = TypeVar("Result")

# Shape, how many times faster than the plain way, how often each is run (in turn).
PLAIN = (((128, 128, 144), 8.0, 5), ((256, 256, 128), 10.0, 3))
LARGE, SMALL = (512, 512, 384), (256, 256, 192)
LARGE_OVER_SMALL, GIGABYTES = 12.0, 8.0
HAAR, HAAR_OVER_COPY = (1024, 1024, 256), 25.0


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def one_thread(array: np.ndarray) -> list[Tree]:
    with threads.single_threaded_blas():  # BLAS too: as is said, and the faster for it
        return plain_organize(array)


def against_plain() -> bool:
    met = True
    organize(planted((24, 24, 12))[0].astype(np.float32))  # compiled loops come from the disk, or are compiled now
    for shape, target, runs in PLAIN:
        array = planted(shape)[0].astype(np.float32)  # as network tensors are; the plain way takes doubles of it
        times = []
        for _ in range(runs):
            plain_took, plain = timed(partial(one_thread, array))
            took, found = timed(partial(organize, array, refine=False))
            if list(found.trees) != plain:
                print(f"{shape}: the trees differ from the plain way's")
                return False
            refined_took, _ = timed(partial(organize, array))
            times.append((plain_took, took, refined_took))
        plain_took, took, refined_took = (statistics.median(column) for column in zip(*times, strict=True))
        met &= plain_took >= target * took
        print(
            f"organize {shape}: {took:.2f} s, {plain_took / took:.1f} × faster than the plain way ({plain_took:.1f} s;"
        )
        print(f"  at least {target:g} ×), same trees; with the refining round {refined_took:.2f} s,", end=" ")
        print(f"{plain_took / refined_took:.1f} ×", flush=True)
    return met


def one_organization(shape: tuple[int, ...]) -> dict[str, float]:
    """Seconds and peak memory of one call, in a process of its own."""
    code = "import sys; from bench.organization import report_one; report_one(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(shape)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def report_one(shape: str) -> None:
    organize(planted((24, 24, 12))[0].astype(np.float32))
    array = planted(json.loads(shape))[0].astype(np.float32)
    took, _ = timed(partial(organize, array))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"seconds": took, "gigabytes": peak}))


def large_against_small() -> bool:
    small = statistics.median(one_organization(SMALL)["seconds"] for _ in range(3))
    large = one_organization(LARGE)
    ratio = large["seconds"] / small
    print(f"organize {LARGE}: {large['seconds']:.1f} s, {ratio:.1f} × {SMALL} ({small:.2f} s; at most", end=" ")
    print(f"{LARGE_OVER_SMALL:g} ×), peak memory {large['gigabytes']:.1f} GB (at most {GIGABYTES:g})", flush=True)
    return ratio <= LARGE_OVER_SMALL and large["gigabytes"] <= GIGABYTES


def haar_against_copy() -> bool:
    array = np.random.default_rng(0).standard_normal(HAAR, dtype=np.float32)
    trees = {axis: planted((n, 2), axis)[1][0] for axis, n in enumerate(HAAR)}
    forward(array[:64, :64], {2: trees[2]}), forward(array[:64, :64], {1: Tree.dyadic(64)})
    pairs = [(timed(partial(forward, array, trees))[0], timed(array.copy)[0]) for _ in range(3)]
    took, copy = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"tri-Haar {HAAR} float32: {took:.2f} s, {took / copy:.1f} × a copy ({copy:.2f} s;", end=" ")
    print(f"at most {HAAR_OVER_COPY:g} ×)")
    return took <= HAAR_OVER_COPY * copy


def main() -> int:
    print(f"{threads.thread_count()} threads")
    return 0 if all([against_plain(), large_against_small(), haar_against_copy()]) else 1


if __name__ == "__main__":
    sys.exit(main())
