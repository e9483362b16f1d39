"""Fetch the next items of an iterable in a thread while the caller works on the current item."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from queue import Empty, Full, Queue
from typing import TypeVar

from attngeo.io.waiting import next_item

Item = TypeVar("Item")

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
