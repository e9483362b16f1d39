"""Threads for independent work, each with single-threaded BLAS, so that no result depends on how many there are.

BLAS divides even small products among all cores, and its threads wait for each other at every step: for the products
of one head that costs more than it gains, and how the work is divided changes last digits.

    spread                  call a task on spans of a range, several at a time
    shared_cores, each      run independent products in threads, inside one context
    single_threaded_blas    limit BLAS to one thread
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_THREAD = 2**23  # multiply-adds of a product; a smaller one is done before a thread has woken up
WORTH_SPREADING = 2e6  # operations below which `spread` uses one thread


def thread_count() -> int:
    """Return the number of threads this process may use: OMP_NUM_THREADS where set, else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(asked), cores)) if asked.isdigit() else cores


@cache
def _blas(with_scipy: bool) -> Any:
    """Return the controller of the loaded BLAS libraries, or None where threadpoolctl or a BLAS is missing."""
    try:
        if with_scipy:
            import scipy.linalg  # noqa: F401  # loads a BLAS of its own, which the controller must find
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    found = ThreadpoolController().select(user_api="blas")
    return found if found.lib_controllers else None


def single_threaded_blas() -> AbstractContextManager[object]:
    """Return a context in which matrix products and eigenvectors use one thread each."""
    controller = _blas(with_scipy=True)
    return nullcontext() if controller is None else controller.limit(limits=1)


# ---- spans of a range


def spread(task: Callable[[int, int], object], total: int, parts: int | None = None, cost: float = inf) -> None:
    """Call `task(lo, hi)` on consecutive spans of 0 … total; tasks must release the GIL to run at the same time.

    parts: number of spans; by default four per thread
    cost: approximate number of operations; cheap work runs in the calling thread, because waking a thread takes longer
    """
    workers = thread_count() if cost > WORTH_SPREADING else 1
    parts = min(total, parts if parts is not None else 4 * workers)
    pending = deque((total * i // parts, total * (i + 1) // parts) for i in range(parts))
    if workers == 1 or parts == 1:
        for lo, hi in pending:
            task(lo, hi)
        return

    def work() -> None:
        try:
            while span := _next(pending):
                task(*span)
        except BaseException:
            pending.clear()  # no thread begins another span
            raise

    helpers = [_pool(workers, os.getpid()).submit(work) for _ in range(min(workers, parts) - 1)]
    try:
        work()
    finally:
        wait(helpers)  # also after an error: they write to memory of the caller
    for helper in helpers:
        helper.result()


def _next(pending: deque[tuple[int, int]]) -> tuple[int, int] | None:
    try:
        return pending.popleft()  # atomic, so several threads may take from it
    except IndexError:
        return None


@lru_cache(maxsize=2)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the pool of this process; a forked process has none of its parent's threads and makes its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix=f"attngeo-{process}")


# ---- independent products


@dataclass(frozen=True)
class _Cores:
    count: int
    pool: ThreadPoolExecutor


# None inside the worker threads, so that work is never divided twice.
_cores: ContextVar[_Cores | None] = ContextVar("attngeo_cores", default=None)


@contextmanager
def shared_cores() -> Iterator[None]:
    """Within this context each product runs on one core, and `each` runs several products at a time."""
    controller = _blas(with_scipy=False)
    if controller is None or _cores.get() is not None:
        yield
        return
    count = max(library.num_threads for library in controller.lib_controllers)
    with controller.limit(limits=1), ThreadPoolExecutor(count, "attngeo-score") as pool:
        token = _cores.set(_Cores(count, pool) if count > 1 else None)
        try:
            yield
        finally:
            _cores.reset(token)


def each(work: Callable[[Item], Result], items: Iterable[Item], multiply_adds: int) -> list[Result]:
    """Return `work(item)` for every item, in threads if one item takes at least `WORTH_A_THREAD` multiply-adds."""
    items = list(items)
    cores = _cores.get()
    if cores is None or len(items) == 1 or multiply_adds < WORTH_A_THREAD:
        return [work(item) for item in items]

    def undivided(item: Item) -> Result:
        _cores.set(None)
        return work(item)

    def run(item: Item, context: Context) -> Result:
        return context.run(undivided, item)

    # NumPy keeps its floating-point error settings in the context.
    return list(cores.pool.map(run, items, [copy_context() for _ in items]))


def spans(length: int, multiply_adds: int) -> list[slice]:
    """Cut an axis for `each`: two slices per core where the work is worth it, one slice otherwise."""
    cores = _cores.get()
    parts = 1 if cores is None else max(1, min(2 * cores.count, multiply_adds // WORTH_A_THREAD, length))
    edges = [length * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
