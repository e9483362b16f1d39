"""Who uses the cores: threads with a product each, not BLAS with all of them on one product.

BLAS shares out a product over all cores however small it is, and its threads wait for each other at every step: for
the products of one head that costs more than it gains, and many times more where the cores are busy with other work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_THREAD = 2**23  # multiply-adds of a product; fewer are done before a thread has woken up


@dataclass(frozen=True)
class Cores:
    """Threads that wait for work, as many as BLAS would have used."""

    count: int
    pool: ThreadPoolExecutor


# None in the threads that do the work, so that it is never shared out twice.
_cores: ContextVar[Cores | None] = ContextVar("attngeo_cores", default=None)


@cache
def _libraries() -> Any:
    """What sets the number of BLAS threads; None where that is not possible, and BLAS then does as it likes."""
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    found = ThreadpoolController().select(user_api="blas")
    return found if found.lib_controllers else None


@contextmanager
def shared_cores() -> Iterator[None]:
    """Within it products run on one core each, and `each` runs several at a time."""
    libraries = _libraries()
    if libraries is None or _cores.get() is not None:
        yield
        return
    count = max(library.num_threads for library in libraries.lib_controllers)
    with libraries.limit(limits=1), ThreadPoolExecutor(count, "attngeo-score") as pool:
        token = _cores.set(Cores(count, pool) if count > 1 else None)
        try:
            yield
        finally:
            _cores.reset(token)


def each(work: Callable[[Item], Result], items: Iterable[Item], multiply_adds: int) -> list[Result]:
    """`work` of every item, several at a time where one of them takes `multiply_adds` enough."""
    items = list(items)
    cores = _cores.get()
    if cores is None or len(items) == 1 or multiply_adds < WORTH_A_THREAD:
        return [work(item) for item in items]

    def alone(item: Item) -> Result:
        _cores.set(None)
        return work(item)

    def run(item: Item, context: Context) -> Result:
        return context.run(alone, item)

    # numpy's floating-point error settings live in the context
    return list(cores.pool.map(run, items, [copy_context() for _ in items]))


def spans(length: int, multiply_adds: int) -> list[slice]:
    """An axis whole, or cut for `each`: in so many parts that no core is left waiting long for another."""
    cores = _cores.get()
    parts = 1 if cores is None else max(1, min(2 * cores.count, multiply_adds // WORTH_A_THREAD, length))
    edges = [length * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
