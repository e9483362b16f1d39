"""Work spread over threads so that the result never depends on how many there are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import inf
from types import ModuleType
from typing import Any

WORTH = 2e6  # operations below which one thread is quickest


@lru_cache(maxsize=1)
def jit() -> ModuleType | None:
    """The compiled loops, or None where numba is not installed and the plain paths serve."""
    try:
        from attngeo.organization import compiled
    except ImportError:
        return None
    return compiled


@lru_cache(maxsize=1)
def gpu() -> ModuleType | None:
    """The kernels for a GPU, or None where there is no triton and torch's own ways serve, exact too, only slower."""
    try:
        from attngeo.organization import gpu as kernels
    except ImportError:
        return None
    return kernels


def count() -> int:
    """As many threads as this process may use: OMP_NUM_THREADS where set, else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(asked), cores)) if asked.isdigit() else cores


def plain_algebra() -> AbstractContextManager[object]:
    """A context in which matrix products and eigenvectors use one thread each, where threadpoolctl is installed.

    How BLAS splits its work changes last digits, and its waiting threads take the cores from ours.
    """
    controller = _controller()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _controller() -> Any:
    try:
        import scipy.linalg  # noqa: F401 (it brings a BLAS of its own, which the controller must find)
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    return ThreadpoolController()


def spread(task: Callable[[int, int], object], total: int, parts: int | None = None, cost: float = inf) -> None:
    """Call task(lo, hi) on spans of 0 … total: `parts` of them, or a few per thread. Tasks release the GIL.

    Work of little `cost` (operations, roughly) is done at once: waking a thread takes longer.
    """
    workers = count() if cost > WORTH else 1
    parts = min(total, parts if parts is not None else 4 * workers)
    spans = [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]
    if workers == 1 or parts == 1:
        for lo, hi in spans:
            task(lo, hi)
        return
    left = deque(spans)  # safe to take from in several threads

    def work() -> None:
        try:
            while span := _next(left):  # whoever is free takes the next
                task(*span)
        except BaseException:
            left.clear()  # nobody begins another
            raise

    helpers = [_pool(workers, os.getpid()).submit(work) for _ in range(min(workers, parts) - 1)]
    try:
        work()
    finally:
        wait(helpers)  # also after an error: they write to memory of the caller
    for helper in helpers:
        helper.result()


def _next(left: deque[tuple[int, int]]) -> tuple[int, int] | None:
    try:
        return left.popleft()
    except IndexError:
        return None


@lru_cache(maxsize=2)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Kept between calls; a forked process has none of these threads and makes its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix=f"attngeo-{process}")
