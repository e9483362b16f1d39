"""`next_item`, `result_of`: waits without a limit that Ctrl-C ends.

A signal that comes in the moment before a wait begins is noticed when the wait ends; once polars is imported, so is one
that comes during a wait without a limit. Therefore a wait is cut into short ones.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from queue import Empty, Queue, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

SHORT = 0.5  # seconds


def next_item(queue: Queue[Item] | SimpleQueue[Item]) -> Item:
    """Return the next item of a queue, whenever it comes.

    >>> queue: Queue[int] = Queue()
    >>> queue.put(1)
    >>> next_item(queue)
    1
    """
    while True:
        try:
            return queue.get(timeout=SHORT)
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
        wait([future], SHORT)
    return future.result()
