"""Spreading work: every span once, errors reach the caller and leave nobody at work."""

from __future__ import annotations

import threading
import time

import pytest

from attngeo.io import threads


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("total", "parts"), [(1, None), (7, None), (100, 16), (3, 16)])
def test_every_element_once(monkeypatch, workers, total, parts):
    monkeypatch.setattr(threads, "thread_count", lambda: workers)
    seen = []
    threads.spread(lambda lo, hi: seen.extend(range(lo, hi)), total, parts)
    assert sorted(seen) == list(range(total))


@pytest.mark.parametrize("by_caller", [True, False])
def test_an_error_ends_all_of_it(monkeypatch, by_caller):
    monkeypatch.setattr(threads, "thread_count", lambda: 2)
    caller = threading.get_ident()
    both, begun, ended = threading.Barrier(2), [], []

    def task(lo, hi):
        begun.append(lo)
        both.wait(5)  # each thread has one span in hand
        if (threading.get_ident() == caller) == by_caller:
            raise ZeroDivisionError(lo)
        time.sleep(0.1)
        ended.append(lo)

    with pytest.raises(ZeroDivisionError):
        threads.spread(task, 50, 50)
    assert len(begun) == 2 and len(ended) == 1  # the other has finished its span by now, and none was begun after it
    seen = []
    threads.spread(lambda lo, hi: seen.append(lo), 4, 4)
    assert sorted(seen) == [0, 1, 2, 3]
