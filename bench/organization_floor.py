"""What organising must at least cost, and how far from it the code is. `python -m bench.organization_floor`.

Nearly all the work is Σ min(a, b) over pairs of slices, one minimum and one addition a number. The floor is those the
method needs at the speed at which two vectors in the first cache are compared; beside it, what a copy of the tensor
costs, which every pass over it costs too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attngeo.io import threads
from attngeo.organization import organize, planted
from attngeo.organization.geometry import l1
from attngeo.organization.geometry.folder_distance import FolderDistances
from attngeo.organization.kernels import dispatch

SHAPES = ((128, 128, 144), (256, 256, 128), (256, 256, 192))
RUNS = 5


def quickest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def speed() -> float:
    """Minima with their additions a second, all threads, on eight rows that stay in the first cache."""
    import numba

    from attngeo.organization.kernels.distances_numba import COLUMNS, _tiles

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def again(points: Any, least: Any, times: int) -> None:
        for _ in range(times):
            _tiles(points, least, points.shape[1])

    points = np.random.default_rng(0).standard_normal((8, COLUMNS))
    times = 20_000
    again(points, np.zeros((8, 8)), 1)
    took = quickest(lambda: threads.spread(lambda lo, hi: again(points, np.zeros((8, 8)), hi - lo), times))
    return times * 3 * 16 * COLUMNS / took  # three tiles of 4 × 4 from the diagonal up


class Counted:
    """Wraps what compares slices: how many numbers, how long."""

    def __init__(self) -> None:
        self.needed = self.seconds = 0.0
        self._through, self._summed = FolderDistances._compiled, l1.summed

    def __enter__(self) -> Counted:
        def through(this: Any, jit: Any, first: Any, sides: Any, *rest: Any) -> Any:
            n = this._slices.shape[0]
            self.needed += n * (n - 1) / 2 * len(first.chosen) * sum(len(side.chosen) for side in sides)
            return self._timed(self._through, this, jit, first, sides, *rest)

        def summed(jit: Any, work: Any, total: int, shape: Any, cost: Any = None, half: bool = True) -> Any:
            rows, columns = shape[1:]
            self.needed += total * (rows * (rows - 1) / 2 if half else rows * columns)
            return self._timed(self._summed, jit, work, total, shape, cost, half)

        FolderDistances._compiled = through  # type: ignore[method-assign]
        l1.summed = summed
        return self

    def __exit__(self, *_: object) -> None:
        FolderDistances._compiled, l1.summed = self._through, self._summed  # type: ignore[method-assign]

    def _timed(self, work: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        found = work(*arguments)
        self.seconds += time.perf_counter() - start
        return found


def main() -> int:
    if dispatch.numba_kernels() is None:
        print("no numba here: nothing to compare with its floor")
        return 0
    peak = speed()
    print(f"{threads.thread_count()} threads: at most {peak / 1e9:.1f} G minima with their additions a second")
    for shape in SHAPES:
        array = planted(shape)[0].astype(np.float32)
        copy = quickest(array.copy)
        found: list[tuple[float, float, float]] = []
        for _ in range(RUNS):
            with Counted() as counted:
                start = time.perf_counter()
                organize(array)
            found.append((time.perf_counter() - start, counted.seconds, counted.needed))
        took, comparing, needed = min(found)
        floor, rest = needed / peak, took - comparing
        print(f"{shape}: {took:.2f} s, of it comparing slices {comparing:.2f} s for {needed / 1e9:.1f} G,", end=" ")
        print(f"{comparing / floor:.2f} × their floor of {floor:.2f} s;", end=" ")
        print(f"the rest {rest:.2f} s, {rest / copy:.0f} copies of the tensor ({1e3 * copy:.1f} ms)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
