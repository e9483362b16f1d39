"""prefetch: items fetched by a thread, in order, with bounded memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from attngeo.io.threads import prefetch


def test_prefetch_keeps_the_order_and_fetches_ahead():
    fetched = []

    def source():
        for i in range(5):
            fetched.append(i)
            yield i

    stream = prefetch(source())
    assert next(stream) == 0
    deadline = time.monotonic() + 5
    while len(fetched) < 3 and time.monotonic() < deadline:  # one yielded, one in the queue, one held by the thread
        time.sleep(0.01)
    time.sleep(0.05)  # time for a mistake to show; a slow machine only makes this check weaker
    assert fetched == [0, 1, 2]  # no more, so memory is bounded
    assert list(stream) == [1, 2, 3, 4]


def test_prefetch_raises_an_error_after_the_items_before_it():
    def source():
        yield 1
        raise OSError("cut short")

    stream = prefetch(source())
    assert next(stream) == 1
    with pytest.raises(OSError, match="cut short"):
        next(stream)


def test_the_thread_ends_when_the_generator_is_closed():
    before = threading.active_count()
    stream = prefetch(iter(range(10**9)))
    next(stream)
    stream.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("taken", [1, 3])
def test_a_fetch_that_waits_is_ended_where_the_consumer_stops_early(taken):
    waiting = threading.Event()

    def items():
        yield from range(3)
        waiting.wait(60 if taken < 3 else 0)

    with closing(prefetch(items(), stop=waiting.set)) as upcoming:
        for _ in range(taken):
            next(upcoming)
        if taken == 3:
            assert list(upcoming) == []
    assert waiting.is_set() == (taken < 3)  # an iterable that has ended is not stopped


def test_an_interrupt_ends_the_wait_for_an_item():
    """Also after polars has been imported: its handler of the signal lets waits without a limit go on."""
    script = """
import polars, threading
from attngeo.io.threads import prefetch
waiting = threading.Event()
def items():
    yield print("begun", flush=True)
    waiting.wait()
for _ in prefetch(items(), stop=waiting.set):
    pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1].endswith("KeyboardInterrupt\n")
