"""The least time that `organize` could take, and how far the code is from it: `python -m bench.organization_floor`.

Nearly all the work is Σ min(a, b) over pairs of slices, one minimum and one addition per number. The floor is the
number of them that the method needs, at the speed of comparing two vectors in the first-level cache. A copy of the
tensor is measured too, because each pass over the tensor takes at least that long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attngeo.io import threads
from attngeo.organization import distance, grow, kernels, organize, planted

SHAPES = ((128, 128, 144), (256, 256, 128), (256, 256, 192))
RUNS = 5


def quickest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few runs."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def speed() -> float:
    """Return how many minima with their additions all threads compute per second, on eight rows in the first cache."""
    import numba

    from attngeo.organization.cpu_kernels import COORDINATES, _add_minima

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def repeat(points: Any, minima: Any, times: int) -> None:
        for _ in range(times):
            _add_minima(points, points, minima, points.shape[1], True)

    points = np.random.default_rng(0).standard_normal((8, COORDINATES))
    times = 20_000
    repeat(points, np.zeros((8, 8)), 1)  # compile
    took = quickest(lambda: threads.spread(lambda lo, hi: repeat(points, np.zeros((8, 8)), hi - lo), times))
    return times * 3 * 16 * COORDINATES / took  # three tiles of 4 × 4 from the diagonal up


class ComparisonCounter:
    """While entered, counts the numbers that are compared between slices, and the time it takes."""

    def __init__(self) -> None:
        self.needed = self.seconds = 0.0

    def __enter__(self) -> ComparisonCounter:
        self._originals = distance._folder_distances, grow.l1_distances  # type: ignore[attr-defined]

        def folder_distances(slices: Any, first: Any, second: Any, sums: Any) -> Any:
            n = len(slices)
            needed = n * (n - 1) / 2 * np.count_nonzero(first[1]) * np.count_nonzero(second[1])
            return self._timed(self._originals[0], needed, slices, first, second, sums)

        def l1_distances(points: Any, rows: Any, columns: Any = None) -> Any:
            pairs = len(rows) * (len(rows) - 1) / 2 if columns is None else len(rows) * len(columns)
            return self._timed(self._originals[1], pairs * points.shape[1], points, rows, columns)

        distance._folder_distances, grow.l1_distances = folder_distances, l1_distances  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        distance._folder_distances, grow.l1_distances = self._originals  # type: ignore[attr-defined]

    def _timed(self, work: Any, needed: float, *arguments: Any) -> Any:
        self.needed += needed
        start = time.perf_counter()
        result = work(*arguments)
        self.seconds += time.perf_counter() - start
        return result


def main() -> int:
    if kernels.cpu() is None:
        print("numba is not installed: nothing to compare with the floor")
        return 0
    peak = speed()
    print(f"{threads.thread_count()} threads: at most {peak / 1e9:.1f} G minima with their additions per second")
    for shape in SHAPES:
        array = planted(shape)[0].astype(np.float32)
        copy = quickest(array.copy)
        runs: list[tuple[float, float, float]] = []
        for _ in range(RUNS):
            with ComparisonCounter() as counter:
                start = time.perf_counter()
                organize(array)
            runs.append((time.perf_counter() - start, counter.seconds, counter.needed))
        took, comparing, needed = min(runs)
        floor, rest = needed / peak, took - comparing
        print(
            f"{shape}: {took:.2f} s, of which comparing slices {comparing:.2f} s for {needed / 1e9:.1f} G minima,",
            end=" ",
        )
        print(f"{comparing / floor:.2f} × the floor of {floor:.2f} s;", end=" ")
        print(f"the rest {rest:.2f} s, {rest / copy:.0f} copies of the tensor ({1e3 * copy:.1f} ms)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
