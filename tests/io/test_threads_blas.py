"""Sharing out the cores: results in order, never twice, nothing left behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from attngeo.io import threads as blas
from attngeo.io.threads import WORTH_A_THREAD, each, shared_cores, spans
from attngeo.weights.scoring.products import product, symmetric_product

threadpoolctl = pytest.importorskip("threadpoolctl")

MUCH = 100 * WORTH_A_THREAD


def blas_threads() -> int:
    return max(library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas")


@pytest.fixture
def four_cores():
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        yield


def test_each_keeps_order_and_uses_several_threads(four_cores):
    together = threading.Barrier(4, timeout=10)

    def work(item: int) -> tuple[int, str]:
        together.wait()  # passes only if four are at it
        return item**2, threading.current_thread().name

    with shared_cores():
        found = each(work, range(8), MUCH)
    assert [square for square, _ in found] == [i**2 for i in range(8)]
    assert all(name.startswith("attngeo-score") for _, name in found)


def test_blas_has_one_thread_within_and_its_own_again_after(four_cores):
    with shared_cores():
        assert blas_threads() == 1
        with shared_cores():  # scores within scores
            assert blas_threads() == 1
        assert blas_threads() == 1
        assert len(spans(1000, MUCH)) == 8
    assert blas_threads() == 4
    with pytest.raises(KeyError), shared_cores():
        raise KeyError
    assert blas_threads() == 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("attngeo-score")]


def test_work_is_not_shared_out_twice(four_cores):
    def inner(_: int) -> list[str]:
        assert spans(1000, MUCH) == [slice(0, 1000)]
        return each(lambda _: threading.current_thread().name, range(3), MUCH)

    with shared_cores():
        for names in each(inner, range(8), MUCH):
            assert len(set(names)) == 1
        assert len(spans(1000, MUCH)) == 8  # the thread that hands out work still can


def test_small_work_stays_where_it_is(four_cores):
    with shared_cores():
        assert (
            each(lambda _: threading.current_thread(), range(3), WORTH_A_THREAD - 1) == [threading.current_thread()] * 3
        )
        assert spans(1000, WORTH_A_THREAD) == [slice(0, 1000)]


def test_an_error_in_a_thread_is_raised(four_cores):
    def work(item: int) -> None:
        if item == 5:
            raise ArithmeticError("five")

    with pytest.raises(ArithmeticError, match="five"), shared_cores():
        each(work, range(8), MUCH)


def test_floating_point_settings_reach_the_threads(four_cores):
    with shared_cores(), np.errstate(over="ignore"):
        assert each(lambda x: np.float32(1e38) * x, np.full(8, 1e10, np.float32), MUCH) == [np.inf] * 8


def test_without_the_means_to_share_blas_does_it(monkeypatch):
    monkeypatch.setattr(blas, "_blas", lambda with_scipy: None)
    before = blas_threads()
    with shared_cores():
        assert blas_threads() == before
        assert each(lambda x: x + 1, range(3), MUCH) == [1, 2, 3]
        assert spans(10, MUCH) == [slice(0, 10)]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 1000])
def test_spans_cover_the_axis_once(four_cores, length):
    with shared_cores():
        cut = spans(length, MUCH)
    assert [i for span in cut for i in range(length)[span]] == list(range(length))


def test_products_are_the_same_however_they_are_shared(four_cores):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(600, 400)), rng.normal(size=(400, 300))
    with shared_cores():
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(product(b.T, a.T), b.T @ a.T, rtol=1e-10, atol=1e-10)
        gram = symmetric_product(a)
    np.testing.assert_allclose(gram, a @ a.T, rtol=1e-10, atol=1e-10)
    assert np.array_equal(gram, gram.T)
