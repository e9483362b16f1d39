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
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from math import inf
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_THREAD = 2**23  # multiply-adds of a product; a smaller one is done before a thread has woken up
WORTH_SPREADING = 2e6  # operations below which `spread` uses one thread


def thread_count() -> int:
    """Return the number of threads this process may use: OMP_NUM_THREADS where set, else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    cores = core_count()
    return max(1, min(int(asked), cores)) if asked.isdecimal() else cores


def core_count() -> int:
    """Return the number of cores this process may use, for processes of one thread each."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- BLAS


def _blas(with_scipy: bool) -> tuple[Any, ...]:
    """Return threadpoolctl's controllers of the loaded BLAS libraries; none where it is not installed."""
    if with_scipy:
        with suppress(ImportError):
            import scipy.linalg  # noqa: F401  # loads a BLAS of its own
    return _blas_controllers("scipy.linalg" in sys.modules, "torch" in sys.modules)


@cache
def _blas_controllers(scipy: bool, torch: bool) -> tuple[Any, ...]:
    """Return the controllers; the arguments say which packages are loaded, as each may bring a BLAS of its own."""
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return ()
    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


_blas_lock = threading.Lock()
_blas_users: Counter[str] = Counter()  # path of a library -> number of contexts that limit it now
_blas_threads: dict[str, int] = {}  # path of a library -> its number of threads before the first of them


@contextmanager
def single_threaded_blas(*, with_scipy: bool = True) -> Iterator[int]:
    """Within this context each matrix product uses one thread; yield the number of threads BLAS had before.

    The limit holds for the whole process. Contexts of several threads may overlap: the last one to end lifts it.
    """
    libraries = _blas(with_scipy)
    with _blas_lock:
        for library in libraries:
            if not _blas_users[library.filepath]:
                _blas_threads[library.filepath] = library.num_threads or 1
                _set_blas_threads(library, 1)
            _blas_users[library.filepath] += 1
        before = max((_blas_threads[library.filepath] for library in libraries), default=1)
    try:
        yield before
    finally:
        with _blas_lock:
            for library in libraries:
                _blas_users[library.filepath] -= 1
                if not _blas_users[library.filepath]:
                    _set_blas_threads(library, _blas_threads[library.filepath])


def _set_blas_threads(library: Any, count: int) -> None:
    # threadpoolctl 3.7 and later ignores a thread while another one holds a limit on OpenBLAS. Here the thread that
    # lifts the limit may be another one than the thread that set it, and the lock above keeps them in order.
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(count)
    release(force=True)


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

    pool = _pool(workers, os.getpid())
    _work_off(pending, lambda span: task(*span), pool, min(workers, parts) - 1, here=True)


def _work_off(
    pending: deque[Item], work: Callable[[Item], object], pool: ThreadPoolExecutor, helpers: int, here: bool
) -> None:
    """Call `work` on all that is pending, in a few threads of the pool and, if `here`, in the calling thread too.

    After an error nothing more is begun, and it is raised once nothing is at work any more.
    """

    def run() -> None:
        try:
            while item := _next(pending):
                work(item)
        except BaseException:
            pending.clear()
            raise

    # NumPy keeps its floating-point error settings in the context.
    futures = [pool.submit(copy_context().run, run) for _ in range(helpers)]
    try:
        if here:
            run()
        else:
            wait(futures)
    finally:
        pending.clear()  # also where the wait was interrupted
        # Nothing is left for a helper that has not begun; waiting for it could take forever in a pool full of waiters.
        futures = [future for future in futures if not future.cancel()]
        wait(futures)  # also after an error: they write to memory of the caller
    for future in futures:
        future.result()


def _next(pending: deque[Item]) -> Item | None:
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
    pool: ThreadPoolExecutor | None  # None: work is not divided
    inside: bool = False  # whether the current thread belongs to the pool


# None outside of `shared_cores`. Worker threads have _ONE_CORE, so that work is never divided twice.
_cores: ContextVar[_Cores | None] = ContextVar("attngeo_cores", default=None)
_ONE_CORE = _Cores(1, None)


@contextmanager
def shared_cores() -> Iterator[None]:
    """Within this context each product runs on one core, and `each` runs several products at a time."""
    if _cores.get() is not None or not _blas(with_scipy=False):
        yield
        return
    with single_threaded_blas(with_scipy=False) as count, ThreadPoolExecutor(count, "attngeo-score") as pool:
        token = _cores.set(_Cores(count, pool) if count > 1 else _ONE_CORE)
        try:
            yield
        finally:
            _cores.reset(token)


@contextmanager
def one_core() -> Iterator[None]:
    """Within this context each product runs on one core and `each` does not divide work: one of several processes."""
    with single_threaded_blas(with_scipy=False):
        token = _cores.set(_ONE_CORE)
        try:
            yield
        finally:
            _cores.reset(token)


def each(work: Callable[[Item], Result], items: Iterable[Item], multiply_adds: int) -> list[Result]:
    """Return `work(item)` for every item, in threads if one item takes at least `WORTH_A_THREAD` multiply-adds."""
    items = list(items)
    cores = _cores.get()
    if cores is None or cores.pool is None or len(items) == 1 or multiply_adds < WORTH_A_THREAD:
        return [work(item) for item in items]
    return _in_pool(work, items, cores, _ONE_CORE)


def together(jobs: Sequence[Callable[[], Result]], multiply_adds: int) -> list[Result]:
    """Return the results of a few jobs, run at the same time if they take at least `WORTH_A_THREAD` multiply-adds.

    What a job does between its products then takes no time from the others. It may divide its work with `each`: it does
    so itself, helped by threads that have nothing else to do.
    """
    cores = _cores.get()
    if cores is None or cores.pool is None or len(jobs) == 1 or multiply_adds < WORTH_A_THREAD:
        return [job() for job in jobs]
    return _in_pool(lambda job: job(), jobs, cores, replace(cores, inside=True))


def _in_pool(work: Callable[[Item], Result], items: Sequence[Item], cores: _Cores, left: _Cores) -> list[Result]:
    """Return `work(item)` for every item, in threads of the pool, with `left` as the cores that an item may use."""
    assert cores.pool is not None
    results: dict[int, Result] = {}

    def run(numbered: tuple[int, Item]) -> None:
        _cores.set(left)
        results[numbered[0]] = work(numbered[1])

    helpers = min(cores.count, len(items)) - cores.inside
    # Each item has a context of its own, so that the caller, who may work on one, keeps its cores.
    _work_off(deque(enumerate(items)), lambda item: copy_context().run(run, item), cores.pool, helpers, cores.inside)
    return [results[i] for i in range(len(items))]


def spans(length: int, multiply_adds: int) -> list[slice]:
    """Cut an axis for `each`: two slices per core where the work is worth it, one slice otherwise."""
    cores = _cores.get()
    if cores is None or cores.pool is None:
        return [slice(0, length)]
    parts = max(1, min(2 * cores.count, multiply_adds // WORTH_A_THREAD, length))
    edges = [length * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


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
    queue: Queue[object] = Queue(1)
    stopped = threading.Event()
    ended = False
    failure: list[BaseException] = []

    def put(item: object) -> bool:
        """Put an item into the queue; return False if the consumer has stopped."""
        while not stopped.is_set():
            try:
                queue.put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def fetch() -> None:
        try:
            for item in items:
                if not put(item):
                    return
                del item  # so that its memory is freed when the consumer is done with it
        except BaseException as error:
            failure.append(error)
        put(_END)

    thread = threading.Thread(target=fetch, name="attngeo-read", daemon=True)
    thread.start()
    try:
        while (item := next_item(queue)) is not _END:
            yield item  # type: ignore[misc]
            del item
        ended = True
        if failure:
            raise failure[0]
    finally:  # also when the consumer stops early: it may close the source, from which the thread must not read then
        stopped.set()
        if stop is not None and not ended:
            stop()
        while thread.is_alive():
            try:
                queue.get(timeout=0.1)
            except Empty:
                continue
        thread.join()
