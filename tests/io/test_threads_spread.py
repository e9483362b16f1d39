"""`spread` visits every span once; an error reaches the caller and leaves no thread at work."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from attngeo.io import threads


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("total", "parts"), [(0, None), (1, None), (7, None), (100, 16), (3, 16)])
def test_every_element_is_visited_once(monkeypatch, workers, total, parts):
    monkeypatch.setattr(threads, "thread_count", lambda: workers)
    visited = []
    threads.spread(lambda lo, hi: visited.extend(range(lo, hi)), total, parts)
    assert sorted(visited) == list(range(total))


@pytest.mark.parametrize("by_caller", [True, False])
def test_after_an_error_no_span_is_begun_and_none_is_left_unfinished(monkeypatch, by_caller):
    monkeypatch.setattr(threads, "thread_count", lambda: 2)
    caller = threading.get_ident()
    both, raising = threading.Barrier(2), threading.Event()
    begun, ended = [], []

    def task(lo, hi):
        begun.append(lo)
        both.wait(10)  # each thread has one span in hand
        if (threading.get_ident() == caller) == by_caller:
            raising.set()
            raise ZeroDivisionError(lo)
        # The pause gives `spread` time to return too early, if it did not wait. The test never depends on its length.
        assert raising.wait(10)
        time.sleep(0.05)
        ended.append(lo)

    with pytest.raises(ZeroDivisionError):
        threads.spread(task, 50, 50)
    assert len(ended) == 1  # the other thread has finished its span
    assert len(begun) == 2  # and no thread has begun another
    visited = []
    threads.spread(lambda lo, hi: visited.append(lo), 4, 4)
    assert sorted(visited) == [0, 1, 2, 3]


def test_spread_inside_of_spread_ends(monkeypatch):
    # Several callers fill the pool with tasks that spread again: nobody may wait for a helper that never begins.
    monkeypatch.setattr(threads, "thread_count", lambda: 2)
    visited = []

    def outer(lo, hi):
        threads.spread(lambda lo, hi: visited.extend(range(lo, hi)), 10, 10)

    callers = [
        threading.Thread(target=threads.spread, args=(outer, 20, 20), daemon=True)  # daemon: a deadlock fails the test
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert not any(caller.is_alive() for caller in callers)
    assert len(visited) == 4 * 20 * 10


def test_floating_point_settings_reach_the_threads(monkeypatch):
    monkeypatch.setattr(threads, "thread_count", lambda: 2)
    both, kept = threading.Barrier(2), []

    def task(lo, hi):
        both.wait(10)
        kept.append(np.geterr()["over"])

    with np.errstate(over="raise"):
        threads.spread(task, 2, 2)
    assert kept == ["raise", "raise"]


@pytest.mark.parametrize(
    ("asked", "count"), [("1", 1), (" 1 ,4", 1), ("0", 1), ("²", None), ("many", None), ("", None)]
)
def test_thread_count_follows_omp_num_threads(monkeypatch, asked, count):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = threads.thread_count()
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.thread_count() == (cores if count is None else count)
