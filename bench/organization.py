"""Speed of `organize` and of the Haar transform: `python -m bench.organization`.

Three ratios with targets: `organize` against a direct implementation, a large tensor against a smaller one, and a Haar
transform against a copy of its array.
"""

from __future__ import annotations

import json
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
from attngeo.organization.haar import forward
from bench._memory import peak_bytes
from bench._questionnaire import direct_organize

Result = TypeVar("Result")

# Shape, target speed-up over the direct implementation, number of runs of each (in turn).
CASES = (((128, 128, 144), 8.0, 5), ((256, 256, 128), 10.0, 3))
LARGE, SMALL = (512, 512, 384), (256, 256, 192)
LARGE_OVER_SMALL, GIGABYTES = 12.0, 8.0
HAAR, HAAR_OVER_COPY = (1024, 1024, 256), 25.0


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds that `work` took and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def direct_on_one_thread(array: np.ndarray) -> list[Tree]:
    """Return the trees of the direct implementation, with single-threaded BLAS, which is also faster for it."""
    with threads.single_threaded_blas():
        return direct_organize(array)


def compare_with_direct() -> bool:
    """Return whether `organize` gives the trees of the direct implementation and reaches the target speed-up."""
    met = True
    organize(planted((24, 24, 12))[0].astype(np.float32))  # compile the kernels, or load them from the cache
    for shape, target, runs in CASES:
        array = planted(shape)[0].astype(np.float32)  # the precision of network tensors
        times = []
        for _ in range(runs):
            direct_took, direct_trees = timed(partial(direct_on_one_thread, array))
            took, organization = timed(partial(organize, array, refine=False))
            if list(organization.trees) != direct_trees:
                print(f"{shape}: the trees differ from those of the direct implementation")
                return False
            refined_took, _ = timed(partial(organize, array))
            times.append((direct_took, took, refined_took))
        direct_took, took, refined_took = (statistics.median(column) for column in zip(*times, strict=True))
        met &= direct_took >= target * took
        print(f"organize {shape}: {took:.2f} s, {direct_took / took:.1f} × faster than the direct implementation")
        print(f"  ({direct_took:.1f} s; target: at least {target:g} ×), same trees;", end=" ")
        print(f"with the refining round {refined_took:.2f} s, {direct_took / refined_took:.1f} ×", flush=True)
    return met


def one_organization(shape: tuple[int, ...]) -> dict[str, float]:
    """Return the seconds and the peak memory of one call, measured in a separate process."""
    code = "import sys; from bench.organization import report_one; report_one(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(shape)], check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report_one(shape: str) -> None:
    """Measure one call for a shape given as JSON, and print the result as JSON."""
    organize(planted((24, 24, 12))[0].astype(np.float32))
    array = planted(json.loads(shape))[0].astype(np.float32)
    took, _ = timed(partial(organize, array))
    print(json.dumps({"seconds": took, "gigabytes": peak_bytes() / 1e9}))


def compare_large_with_small() -> bool:
    """Return whether time and memory of the large tensor stay within their targets."""
    small = statistics.median(one_organization(SMALL)["seconds"] for _ in range(3))
    large = one_organization(LARGE)
    ratio = large["seconds"] / small
    print(f"organize {LARGE}: {large['seconds']:.1f} s, {ratio:.1f} × {SMALL} ({small:.2f} s; target: at most", end=" ")
    print(
        f"{LARGE_OVER_SMALL:g} ×), peak memory {large['gigabytes']:.1f} GB (target: at most {GIGABYTES:g})", flush=True
    )
    return ratio <= LARGE_OVER_SMALL and large["gigabytes"] <= GIGABYTES


def compare_haar_with_copy() -> bool:
    """Return whether the Haar transform along all axes is fast enough relative to a copy of the array."""
    array = np.random.default_rng(0).standard_normal(HAAR, dtype=np.float32)
    trees = {axis: planted((n, 2), axis)[1][0] for axis, n in enumerate(HAAR)}
    forward(array[:64, :64], {2: trees[2]}), forward(array[:64, :64], {1: Tree.dyadic(64)})  # compile the kernels
    pairs = [(timed(partial(forward, array, trees))[0], timed(array.copy)[0]) for _ in range(3)]
    took, copy = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"tri-Haar {HAAR} float32: {took:.2f} s, {took / copy:.1f} × a copy ({copy:.2f} s;", end=" ")
    print(f"target: at most {HAAR_OVER_COPY:g} ×)")
    return took <= HAAR_OVER_COPY * copy


def main() -> int:
    print(f"{threads.thread_count()} threads")
    return 0 if all([compare_with_direct(), compare_large_with_small(), compare_haar_with_copy()]) else 1


if __name__ == "__main__":
    sys.exit(main())
