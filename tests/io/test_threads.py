"""Work in threads: every item once and in order, errors reach the caller, BLAS keeps to one thread, waits can end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  # loads a BLAS of its own
import threadpoolctl

from attngeo.io import threads
from attngeo.io.threads import WORTH_A_THREAD, each, prefetch, shared_cores, spans, together

LARGE = 100 * WORTH_A_THREAD  # multiply-adds of work that is worth many threads


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        yield


# ---- spread


@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize(("total", "parts"), [(0, None), (100, None), (3, 16)])
def test_every_element_is_visited_once(
    monkeypatch: pytest.MonkeyPatch, workers: int, total: int, parts: int | None
) -> None:
    monkeypatch.setattr(threads, "thread_count", lambda: workers)
    visited: list[int] = []
    threads.spread(lambda lo, hi: visited.extend(range(lo, hi)), total, parts)
    assert sorted(visited) == list(range(total))


@pytest.mark.parametrize("by_caller", [True, False])
def test_after_an_error_no_span_is_begun_and_none_is_left_unfinished(
    monkeypatch: pytest.MonkeyPatch, by_caller: bool
) -> None:
    monkeypatch.setattr(threads, "thread_count", lambda: 2)
    caller = threading.get_ident()
    both, raising = threading.Barrier(2), threading.Event()
    begun, ended = [], []

    def task(lo: int, hi: int) -> None:
        begun.append(lo)
        both.wait(10)  # each thread has one span in hand
        if (threading.get_ident() == caller) == by_caller:
            raising.set()
            raise IndexError(lo)
        # The pause gives `spread` time to return too early, if it did not wait. The test never depends on its length.
        assert raising.wait(10)
        time.sleep(0.05)
        ended.append(lo)

    with pytest.raises(IndexError):
        threads.spread(task, 50, 50)
    assert len(ended) == 1  # the other thread has finished its span
    assert len(begun) == 2  # and no thread has begun another


@pytest.mark.parametrize(("asked", "count"), [("1", 1), ("", None)])
def test_thread_count_follows_omp_num_threads(monkeypatch: pytest.MonkeyPatch, asked: str, count: int | None) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = threads.thread_count()
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.thread_count() == (cores if count is None else count)


# ---- products


@pytest.mark.usefixtures("four_cores")
def test_each_keeps_the_order_and_uses_several_threads_with_the_settings_of_the_caller() -> None:
    barrier = threading.Barrier(4, timeout=10)

    def work(item: int) -> tuple[int, str]:
        barrier.wait()  # passes only if four threads work at the same time
        return item**2, np.geterr()["over"]

    with shared_cores(), np.errstate(over="raise"):
        assert each(work, range(8), LARGE) == [(i**2, "raise") for i in range(8)]


@pytest.mark.usefixtures("four_cores")
def test_blas_has_one_thread_inside_the_context_and_its_own_number_after_it() -> None:
    with shared_cores():
        assert blas_threads() == {1}
        with shared_cores():  # nested, as when scores are computed within a scoring run
            assert blas_threads() == {1}
        assert blas_threads() == {1} and len(spans(1000, LARGE)) == 8
    assert blas_threads() == {4}


@pytest.mark.usefixtures("four_cores")
def test_contexts_of_several_threads_may_overlap() -> None:
    # The first thread leaves while the second is inside, so that the limit is lifted by another thread than set it.
    first_inside, second_inside, first_left = threading.Event(), threading.Event(), threading.Event()
    inside: list[set[int]] = []

    def first() -> None:
        with shared_cores():
            first_inside.set()
            assert second_inside.wait(10)
        first_left.set()

    def second() -> None:
        assert first_inside.wait(10)
        with shared_cores():
            second_inside.set()
            assert first_left.wait(10)
            inside.append(blas_threads())

    both = [threading.Thread(target=target) for target in (first, second)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert inside == [{1}] and blas_threads() == {4}


@pytest.mark.usefixtures("four_cores")
def test_work_is_not_divided_twice() -> None:
    def inner(_: int) -> list[str]:
        with shared_cores():  # as in a worker that computes scores
            assert spans(1000, LARGE) == [slice(0, 1000)]
            return each(lambda _: threading.current_thread().name, range(3), LARGE)

    with shared_cores():
        for names in each(inner, range(8), LARGE):
            assert len(set(names)) == 1
        assert len(spans(1000, LARGE)) == 8  # the thread that hands out the work still divides it


@pytest.mark.usefixtures("four_cores")
def test_small_work_stays_in_the_calling_thread() -> None:
    caller = threading.current_thread()
    with shared_cores():
        assert each(lambda _: threading.current_thread(), range(3), WORTH_A_THREAD - 1) == [caller] * 3
        assert together([threading.current_thread] * 2, WORTH_A_THREAD - 1) == [caller] * 2
        assert spans(1000, WORTH_A_THREAD) == [slice(0, 1000)]


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("length", [1, 7, 1000])
def test_spans_cover_the_axis_once(length: int) -> None:
    with shared_cores():
        slices = spans(length, LARGE)
    assert [i for span in slices for i in range(length)[span]] == list(range(length))


def test_a_blas_that_is_loaded_later_is_limited_too() -> None:
    code = (
        "import threadpoolctl, numpy as np\n"
        "from attngeo.io.threads import shared_cores\n"
        "with threadpoolctl.threadpool_limits(4, user_api='blas'), shared_cores():\n"
        "    np.eye(3) @ np.eye(3)\n"
        "import scipy.linalg\n"
        "with threadpoolctl.threadpool_limits(4, user_api='blas'), shared_cores():\n"
        "    counts = [lib['num_threads'] for lib in threadpoolctl.threadpool_info() if lib['user_api'] == 'blas']\n"
        "assert counts == [1] * len(counts) and counts, counts\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("four_cores")
def test_jobs_run_together_and_an_idle_thread_helps_the_job_that_divides_its_work() -> None:
    both, helped = threading.Barrier(2, timeout=10), threading.Barrier(4, timeout=10)

    def divided() -> list[int]:
        both.wait()  # passes only if both jobs run at the same time
        return each(lambda i: (helped.wait(), i)[1], range(8), LARGE)  # passes only if four threads work on it

    def short() -> list[int]:
        both.wait()
        assert len(spans(1000, LARGE)) == 8  # a job may divide its work
        return [-1]

    def failing() -> list[int]:
        return each(lambda item: 1 // item, [3, 2, 1, 0], LARGE)

    with shared_cores():
        assert together([divided, short], LARGE) == [list(range(8)), [-1]]
        with pytest.raises(ZeroDivisionError):
            together([failing, failing, list], LARGE)


# ---- prefetch


def test_prefetch_keeps_the_order_and_fetches_one_item_ahead() -> None:
    fetched, second = [], threading.Event()

    def source() -> Iterator[int]:
        for i in range(5):
            fetched.append(i)
            if i == 1:
                second.set()
            yield i

    stream = prefetch(source())
    assert next(stream) == 0 and second.wait(10)
    time.sleep(0.05)  # time for a mistake to show; a slow machine only makes this check weaker
    assert fetched == [0, 1]  # no more, so memory is bounded
    assert list(stream) == [1, 2, 3, 4]


def test_prefetch_raises_an_error_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("cut short")

    stream = prefetch(source())
    assert next(stream) == 1
    with pytest.raises(OSError, match="cut short"):
        next(stream)


def test_a_fetch_that_waits_is_ended_where_the_consumer_stops_early() -> None:
    waiting = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        waiting.wait(60)

    before = threading.active_count()
    with closing(prefetch(items(), stop=waiting.set)) as upcoming:
        next(upcoming)
    assert waiting.is_set() and threading.active_count() == before


def test_an_interrupt_ends_the_wait_for_an_item() -> None:
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
