"""`each` returns results in order, `shared_cores` limits BLAS to one thread, and both leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest

from attngeo.io import threads
from attngeo.io.threads import WORTH_A_THREAD, each, shared_cores, single_threaded_blas, spans, together
from attngeo.weights.scoring.norms import gram_matrix, product

threadpoolctl = pytest.importorskip("threadpoolctl")

LARGE = 100 * WORTH_A_THREAD  # multiply-adds of work that is worth many threads


def blas_threads() -> int:
    return max(library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas")


@pytest.fixture
def four_cores() -> Iterator[None]:
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        yield


def test_each_keeps_order_and_uses_several_threads(four_cores):
    barrier = threading.Barrier(4, timeout=10)

    def work(item: int) -> tuple[int, str]:
        barrier.wait()  # passes only if four threads work at the same time
        return item**2, threading.current_thread().name

    with shared_cores():
        results = each(work, range(8), LARGE)
    assert [square for square, _ in results] == [i**2 for i in range(8)]
    assert all(name.startswith("attngeo-score") for _, name in results)


def test_blas_has_one_thread_inside_the_context_and_its_own_number_after_it(four_cores):
    with shared_cores():
        assert blas_threads() == 1
        with shared_cores():  # nested, as when scores are computed within a scoring run
            assert blas_threads() == 1
        assert blas_threads() == 1
        assert len(spans(1000, LARGE)) == 8
    assert blas_threads() == 4
    with pytest.raises(KeyError), shared_cores():
        raise KeyError
    assert blas_threads() == 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("attngeo-score")]


@pytest.mark.parametrize("limit", [shared_cores, single_threaded_blas])
def test_contexts_of_several_threads_may_overlap(limit: Callable[[], AbstractContextManager[object]]) -> None:
    # The first thread leaves while the second is inside, so that the limit is lifted by another thread than set it.
    first_inside, second_inside, first_left = threading.Event(), threading.Event(), threading.Event()
    inside: list[int] = []

    def first() -> None:
        with limit():
            first_inside.set()
            assert second_inside.wait(10)
        first_left.set()

    def second() -> None:
        assert first_inside.wait(10)
        with limit():
            second_inside.set()
            assert first_left.wait(10)
            inside.append(max(library.num_threads for library in libraries))

    libraries = threads._blas(with_scipy=limit is single_threaded_blas)
    before = [library.num_threads for library in libraries]
    for library in libraries:
        threads._set_blas_threads(library, 4)
    try:
        both = [threading.Thread(target=target) for target in (first, second)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert inside == [1]
        assert [library.num_threads for library in libraries] == [4] * len(libraries)
    finally:
        for library, count in zip(libraries, before, strict=True):
            threads._set_blas_threads(library, count)


def test_work_is_not_divided_twice(four_cores):
    def inner(_: int) -> list[str]:
        with shared_cores():  # as in a worker that computes scores
            assert spans(1000, LARGE) == [slice(0, 1000)]
            return each(lambda _: threading.current_thread().name, range(3), LARGE)

    with shared_cores():
        for names in each(inner, range(8), LARGE):
            assert len(set(names)) == 1
        assert len(spans(1000, LARGE)) == 8  # the thread that hands out the work still divides it


def test_small_work_stays_in_the_calling_thread(four_cores):
    caller = threading.current_thread()
    with shared_cores():
        assert each(lambda _: threading.current_thread(), range(3), WORTH_A_THREAD - 1) == [caller] * 3
        assert spans(1000, WORTH_A_THREAD) == [slice(0, 1000)]


def test_an_error_in_a_thread_is_raised(four_cores):
    def work(item: int) -> None:
        if item == 5:
            raise ArithmeticError("five")

    with pytest.raises(ArithmeticError, match="five"), shared_cores():
        each(work, range(8), LARGE)


def test_floating_point_settings_reach_the_threads(four_cores):
    with shared_cores(), np.errstate(over="ignore"):
        assert each(lambda x: np.float32(1e38) * x, np.full(8, 1e10, np.float32), LARGE) == [np.inf] * 8


def test_without_threadpoolctl_blas_keeps_its_threads(monkeypatch):
    monkeypatch.setattr(threads, "_blas", lambda with_scipy: ())
    before = blas_threads()
    with shared_cores():
        assert blas_threads() == before
        assert each(lambda x: x + 1, range(3), LARGE) == [1, 2, 3]
        assert spans(10, LARGE) == [slice(0, 10)]
    with single_threaded_blas():
        assert blas_threads() == before


@pytest.mark.parametrize("length", [1, 2, 7, 8, 1000])
def test_spans_cover_the_axis_once(four_cores, length):
    with shared_cores():
        slices = spans(length, LARGE)
    assert [i for span in slices for i in range(length)[span]] == list(range(length))


def test_products_do_not_depend_on_how_they_are_divided(four_cores):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(600, 400)), rng.normal(size=(400, 300))
    with shared_cores():
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(product(b.T, a.T), b.T @ a.T, rtol=1e-10, atol=1e-10)
        gram = gram_matrix(a.T)
    np.testing.assert_allclose(gram, a @ a.T, rtol=1e-10, atol=1e-10)
    assert np.array_equal(gram, gram.T)


def test_a_blas_that_is_loaded_later_is_limited_too():
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


def test_jobs_run_together_and_an_idle_thread_helps_the_job_that_divides_its_work(four_cores):
    both, helped = threading.Barrier(2, timeout=10), threading.Barrier(4, timeout=10)

    def divided() -> list[int]:
        both.wait()  # passes only if both jobs run at the same time
        return each(lambda i: (helped.wait(), i)[1], range(8), LARGE)  # passes only if four threads work on it

    def short() -> list[int]:
        both.wait()
        assert len(spans(1000, LARGE)) == 8  # a job may divide its work
        return [-1]

    with shared_cores():
        assert together([divided, short], LARGE) == [list(range(8)), [-1]]


def test_jobs_that_all_divide_their_work_end(four_cores):
    def job(start: int) -> list[int]:
        return [sum(each(lambda i: i, range(start, start + n), LARGE)) for n in range(2, 30)]

    with shared_cores():
        found = together([lambda start=start: job(start) for start in range(9)], LARGE)
    assert found == [[sum(range(start, start + n)) for n in range(2, 30)] for start in range(9)]


def test_small_jobs_stay_in_the_calling_thread(four_cores):
    with shared_cores():
        assert together([threading.current_thread] * 2, WORTH_A_THREAD - 1) == [threading.current_thread()] * 2


def test_an_error_within_a_job_is_raised(four_cores):
    def job() -> list[int]:
        return each(lambda item: 1 // item, [3, 2, 1, 0], LARGE)

    with pytest.raises(ZeroDivisionError), shared_cores():
        together([job, job, list], LARGE)
