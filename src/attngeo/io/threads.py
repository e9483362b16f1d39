"""Threads for independent work, each with single-threaded BLAS, so that no result depends on how many there are.

BLAS divides even small products among all cores, and its threads wait for each other at every step: for the products
of one head that costs more than it gains, and how the work is divided changes last digits.

    spread                  call a task on spans of a range, several at a time
    shared_cores, each      run independent products in threads, inside one context
    together                run a few longer jobs at the same time, each of which may use `each`
    one_core                run everything on one core, in worker processes
    single_threaded_blas    limit BLAS to one thread
    prefetch                fetch the next item of an iterable while the caller works on the current one
    next_item, result_of    waits without a limit that Ctrl-C ends
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache, lru_cache
from itertools import pairwise
from math import inf
from queue import Empty, Queue, SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_THREAD = 2**23  # multiply-adds of a product; a smaller one is done before a thread has woken up
WORTH_SPREADING = 2e6  # operations below which `spread` uses one thread


def thread_count() -> int:
    """Return the number of threads this process may use: OMP_NUM_THREADS where set, else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = core_count()
    return max(1, min(int(asked), cores)) if asked.isdecimal() else cores


def core_count() -> int:
    """Return the number of cores this process may use, for processes of one thread each."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- BLAS

_blas_lock = threading.Lock()
_blas_users = 0  # contexts that limit BLAS now
_blas_limited: dict[str, tuple[Any, int]] = {}  # path of a library → its controller, its number of threads before


@contextmanager
def single_threaded_blas(*, with_scipy: bool = True) -> Iterator[int]:
    """Within this context each matrix product uses one thread; yield the number of threads BLAS had before.

    The limit holds for the whole process. Contexts of several threads may overlap: the last one to end lifts it.
    """
    global _blas_users
    if with_scipy:
        with suppress(ImportError):
            import scipy.linalg  # noqa: F401  # loads a BLAS of its own
    with _blas_lock:
        _blas_users += 1
        for library in _blas("scipy.linalg" in sys.modules, "torch" in sys.modules):
            if library.filepath not in _blas_limited:
                _blas_limited[library.filepath] = library, library.num_threads or 1
                _set_blas_threads(library, 1)
        before = max((count for _, count in _blas_limited.values()), default=1)
    try:
        yield before
    finally:
        with _blas_lock:
            _blas_users -= 1
            if not _blas_users:
                for library, count in _blas_limited.values():
                    _set_blas_threads(library, count)
                _blas_limited.clear()


@cache
def _blas(scipy: bool, torch: bool) -> tuple[Any, ...]:
    """Return threadpoolctl's controllers of the loaded BLAS libraries.

    The arguments say which packages are loaded, as each may bring a BLAS of its own.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


def _set_blas_threads(library: Any, count: int) -> None:
    # threadpoolctl 3.7 and later ignores a thread while another one holds a limit on OpenBLAS. Here the thread that
    # lifts the limit may be another one than the thread that set it, and the lock above keeps them in order.
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(count)
    release(force=True)


# ---- independent work

# Among how many threads work is divided; None outside of `shared_cores`.
_cores: ContextVar[int | None] = ContextVar("attngeo_cores", default=None)


def spread(task: Callable[[int, int], object], total: int, parts: int | None = None, cost: float = inf) -> None:
    """Call `task(lo, hi)` on consecutive spans of 0 … total; tasks must release the GIL to run at the same time.

    parts: number of spans; by default four per thread
    cost: approximate number of operations; cheap work runs in the calling thread, because waking a thread takes longer
    """
    workers = thread_count() if cost > WORTH_SPREADING else 1
    parts = min(total, parts if parts is not None else 4 * workers)
    edges = [total * i // parts for i in range(parts + 1)] if parts else []
    _divide(lambda span: task(*span), list(pairwise(edges)), workers, _cores.get())


@contextmanager
def shared_cores() -> Iterator[None]:
    """Within this context each product runs on one core, and `each` runs several products at a time."""
    if _cores.get() is not None:
        yield
        return
    with _one_core_each(None):
        yield


@contextmanager
def one_core() -> Iterator[None]:
    """Within this context each product runs on one core and `each` does not divide work: one of several processes."""
    with _one_core_each(1):
        yield


@contextmanager
def _one_core_each(cores: int | None) -> Iterator[None]:
    with single_threaded_blas(with_scipy=False) as count:
        token = _cores.set(cores or count)
        try:
            yield
        finally:
            _cores.reset(token)


def each(work: Callable[[Item], Result], items: Iterable[Item], multiply_adds: int) -> list[Result]:
    """Return `work(item)` for every item, in threads if one item takes at least `WORTH_A_THREAD` multiply-adds."""
    cores = _cores.get() or 1
    return _divide(work, list(items), cores if multiply_adds >= WORTH_A_THREAD else 1, 1 if cores > 1 else None)


def together(jobs: Sequence[Callable[[], Result]], multiply_adds: int) -> list[Result]:
    """Return the results of a few jobs, run at the same time if they take at least `WORTH_A_THREAD` multiply-adds.

    What a job does between its products then takes no time from the others. It may divide its work with `each`, helped
    by threads that have nothing else to do.
    """
    cores = _cores.get() or 1
    return _divide(lambda job: job(), jobs, cores if multiply_adds >= WORTH_A_THREAD else 1, _cores.get())


def spans(length: int, multiply_adds: int) -> list[slice]:
    """Cut an axis for `each`: two slices per core where the work is worth it, one slice otherwise."""
    cores = _cores.get() or 1
    parts = 1 if cores == 1 else max(1, min(2 * cores, multiply_adds // WORTH_A_THREAD, length))
    edges = [length * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _divide(work: Callable[[Item], Result], items: Sequence[Item], threads: int, inside: int | None) -> list[Result]:
    """Return `work(item)` for every item, from the calling thread and those of the pool.

    After an error nothing more is begun, and it is raised once nothing is at work any more.

    inside: among how many threads `work` may divide its own work
    """
    if threads == 1 or len(items) <= 1:
        return [work(item) for item in items]
    pending = iter(list(enumerate(items)))  # several threads may take from it, because that is atomic
    failed = threading.Event()
    results: dict[int, Result] = {}

    def run() -> None:
        _cores.set(inside)
        for at, item in pending:
            if failed.is_set():
                return
            try:
                results[at] = work(item)
            except BaseException:
                failed.set()
                raise

    pool = _pool(threads, os.getpid())
    # NumPy keeps its floating-point error settings in the context.
    helpers = [pool.submit(copy_context().run, run) for _ in range(min(threads, len(items)) - 1)]
    try:
        copy_context().run(run)
    except BaseException:
        failed.set()  # also where the calling thread was interrupted; without an error a helper may be at the last item
        raise
    finally:
        # Nothing is left for a helper that has not begun; waiting for it could take forever in a pool full of waiters.
        helpers = [helper for helper in helpers if not helper.cancel()]
        wait(helpers)  # also after an error: they write to memory of the caller
    for helper in helpers:
        helper.result()
    return [results[at] for at in range(len(items))]


@lru_cache(maxsize=2)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the pool of this process; a forked process has none of its parent's threads and makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"attngeo-{process}")


# ---- waiting
#
# A signal that comes in the moment before a wait begins is noticed when the wait ends; once polars is imported, so is
# one that comes during a wait without a limit. Therefore a wait is cut into short ones.

_SHORT = 0.5  # seconds


def next_item(queue: Queue[Item] | SimpleQueue[Item]) -> Item:
    """Return the next item of a queue, whenever it comes.

    >>> queue: Queue[int] = Queue()
    >>> queue.put(1)
    >>> next_item(queue)
    1
    """
    while True:
        try:
            return queue.get(timeout=_SHORT)
        except Empty:
            continue


def result_of(future: Future[Item]) -> Item:
    """Return the result of a future, or raise its exception, whenever it has ended.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool:
    ...     result_of(pool.submit(abs, -1))
    1
    """
    while not future.done():
        wait([future], _SHORT)
    return future.result()


# ---- prefetching

_END = object()


def prefetch(items: Iterable[Item], *, stop: Callable[[], None] | None = None) -> Generator[Item, None, None]:
    """Yield the items of an iterable while a thread fetches the next one.

    stop: called where the generator is closed before its end; it makes the thread's present fetch end soon

    An exception raised in the thread is raised here, after the items before it. The thread has ended when the generator
    is closed.

    >>> list(prefetch(range(3)))
    [0, 1, 2]
    """
    iterator, ended = iter(items), False
    with ThreadPoolExecutor(1, "attngeo-read") as pool:
        upcoming: Future[Any] = pool.submit(next, iterator, _END)
        try:
            while (item := result_of(upcoming)) is not _END:
                upcoming = pool.submit(next, iterator, _END)
                yield item
                del item  # so that its memory is freed when the consumer is done with it
            ended = True
        finally:  # the consumer may close the source next, from which the thread must not read then
            if stop is not None and not ended:
                stop()
