"""`organize`: it recovers planted trees, gives the same trees however it is run, and ends on every input."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import (
    NetworkTensor,
    Organization,
    Tree,
    expand,
    gaussian_affinity,
    kernels,
    organize,
    paraproduct,
    planted,
    softmax_invariance,
)

torch = pytest.importorskip("torch")


def l1_ratio(shape, seed, **options):
    """Return the total l1 norm along the trees of `organize`, divided by that along the planted trees."""
    array, trees = planted(shape, seed)
    found = organize(array, **options)
    l1 = expand(array, found.trees).entropy()
    assert found.history[-1].l1 == pytest.approx(l1, rel=1e-9)
    return l1 / expand(array, trees).entropy()


@pytest.mark.parametrize("shape", [(64, 64, 24), (96, 150, 37), pytest.param((256, 256, 128), marks=pytest.mark.slow)])
def test_planted_trees_are_recovered(shape):
    """The total l1 norm is at most 1.10 times that of the planted trees for every seed, and 1.05 in the median."""
    ratios = [l1_ratio(shape, seed) for seed in range(5)]
    assert max(ratios) <= 1.10, ratios
    assert statistics.median(ratios) <= 1.05, ratios


def test_refining_makes_the_difference():
    assert l1_ratio((64, 64, 24), 4, refine=False) > 1.10 > 1.0 > l1_ratio((64, 64, 24), 4)


def test_iterations_are_recorded_and_stop_early():
    array, _ = planted((30, 28, 12), 0)
    calls = []
    found = organize(array, iterations=12, refine=False, progress=lambda done, total: calls.append((done, total)))
    assert found.settled and len(found.history) < 12
    assert found.history[-1].trees == found.history[-2].trees == found.trees
    assert found.history[-1].likeness == (1.0, 1.0, 1.0)
    assert found.history[0].likeness[2] is None  # the heads have no tree before the first iteration
    assert [done for done, _ in calls] == sorted({done for done, _ in calls}) and calls[-1][0] == calls[-1][1]
    for step in found.history:
        assert step.l1 == pytest.approx(expand(array, step.trees).entropy())
    short = organize(array, iterations=2, refine=False)
    assert short.history == found.history[:2]
    restless = organize(np.random.default_rng(0).normal(size=(30, 28, 12)), iterations=2, refine=False)
    assert restless.history[0].trees != restless.history[1].trees and not restless.settled
    assert not organize(array, iterations=1, refine=False).settled  # nothing to compare with
    calls.clear()
    refined = organize(array, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]
    assert [step.stage for step in refined.history][-1] == "refined"
    assert refined.history[-1].l1 <= refined.history[-2].l1


def test_matrices_have_their_own_defaults():
    array, _ = planted((40, 31), 3)
    found = organize(array)
    assert len(found.trees) == 2 and all(step.stage == "iteration" for step in found.history)
    assert organize(array, iterations=10, alpha=1.0, beta=0.0, constant=1.0, refine=False) == found
    assert organize(array, alpha=0.0, beta=1.0).history != found.history
    better = organize(array, refine=True)
    assert better.history[-1].l1 < found.history[-1].l1


@pytest.mark.parametrize(
    "options", [{"tree": "binary"}, {"start": "gaussian"}, {"tree": "binary", "start": "gaussian"}]
)
def test_binary_trees_and_gaussian_affinities(options):
    array, _ = planted((48, 40, 16), 1)
    found = organize(array, **options)
    dyadic = expand(array, tuple(Tree.dyadic(n) for n in array.shape)).entropy()
    assert found.history[-1].l1 < 0.5 * dyadic
    if options.get("tree") == "binary":
        assert found.history[-1].stage == "iteration" and max(found.trees[0].widths) == 48
        assert found.trees[0].widths[1] == 2


def test_threads_libraries_and_kernels_give_the_same_trees(monkeypatch):
    array, _ = planted((70, 52, 21), 2)
    expected = organize(array)
    for count in (1, 3, 5):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        assert organize(array) == expected
    for other in (
        organize(torch.tensor(array)),
        organize(array, device="cpu"),
        organize(torch.tensor(array), device="cpu"),
    ):
        assert other.trees == expected.trees
        np.testing.assert_allclose(other.affinities[0], expected.affinities[0], rtol=1e-9)
    monkeypatch.setattr(kernels, "cpu", lambda: None)
    assert organize(array).trees == expected.trees


@pytest.mark.parametrize("tree", ["flexible", "binary"])
def test_permuting_an_axis_permutes_its_tree(tree):
    array, _ = planted((36, 30, 14), 4)
    order = np.random.default_rng(1).permutation(30)
    plain, permuted = organize(array, tree=tree), organize(array[:, order], tree=tree)
    np.testing.assert_array_equal(permuted.trees[1].levels, plain.trees[1].permuted(order).levels)
    np.testing.assert_array_equal(permuted.trees[2].levels, plain.trees[2].levels)


rng = np.random.default_rng(9)
INPUTS = {
    "constant": np.ones((6, 5, 4)),
    "zeros": np.zeros((5, 5, 5)),
    "negative": -np.abs(rng.standard_normal((7, 6, 5))),
    "single entry": np.full((1, 1, 1), 3.0),
    "one head": rng.standard_normal((6, 6, 1)),
    "two by two": rng.standard_normal((2, 2, 2)),
    "duplicates": np.repeat(rng.standard_normal((3, 8, 4)), 4, axis=0),
    "disconnected": np.kron(np.eye(3), rng.random((4, 4)) + 0.5)[:, :, None] * np.ones(3),
    "causal": np.tril(rng.random((9, 9)))[:, :, None] * rng.random(4),
    "matrix": rng.standard_normal((1, 7)),
    "constant matrix": np.full((4, 4), -2.0),
    "integers": rng.integers(0, 3, (6, 7, 3)),
    "tiny numbers": 1e-130 * rng.standard_normal((6, 6, 3)),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("options", [{}, {"tree": "binary"}, {"start": "gaussian"}])
def test_organize_ends_on_every_input(name, options):
    array = INPUTS[name]
    found = organize(array, **options)
    assert tuple(tree.size for tree in found.trees) == array.shape
    np.testing.assert_allclose(found.expand().inverse(), array, atol=1e-12 * max(np.abs(array).max(), 1e-300))
    assert organize(array, **options) == found


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_float32_logits_with_the_mask_added_are_refused(make):
    """A masked entry is the least float32, so that a Haar coefficient, a sum of several, would be infinite."""
    logits = rng.standard_normal((6, 5, 4)).astype(np.float32)
    trees = organize(logits).trees
    logits[np.triu_indices(6, 1, 5)] = np.finfo(np.float32).min
    for call in (organize, lambda a: expand(a, trees)):
        with pytest.raises(InputError, match=r"largest absolute value is 3.4e\+38, .* before the mask is added"):
            call(make(logits))
    assert np.isfinite(organize(make(logits.astype(np.float64))).history[-1].l1)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_numbers_whose_squares_float64_cannot_hold_are_refused(scale, make):
    array = make(scale * rng.standard_normal((6, 5, 4)))
    trees = organize(np.ones((6, 5, 4))).trees
    for call in (organize, softmax_invariance, lambda a: gaussian_affinity(a, 0), lambda a: expand(a, trees)):
        with pytest.raises(
            InputError, match=r"largest absolute value is .*e[+-][23]\d\d, expected 0 or one from 1e-140 to"
        ):
            call(array)


@pytest.mark.parametrize("exponent", [-400, 400])
def test_results_do_not_depend_on_the_scale(exponent):
    array, _ = planted((12, 10, 8), 0)
    plain, scaled = organize(array), organize(array * 2.0**exponent)
    assert scaled.trees == plain.trees and all(map(np.array_equal, scaled.affinities, plain.affinities))
    assert scaled.expand().sparsity.shares == plain.expand().sparsity.shares


def test_reordering_keeps_labels_and_the_embedding_has_one_row_per_head():
    array, _ = planted((12, 10, 8), 0)
    tensor = NetworkTensor(array, queries=tuple("abcdefghijkl"), heads=tuple(f"L0H{h}" for h in range(8)))
    found = organize(tensor)
    orders = [tree.order for tree in found.trees]
    moved = found.reordered()
    np.testing.assert_array_equal(moved.values, tensor.values[np.ix_(*orders)])
    assert moved.queries == tuple("abcdefghijkl"[i] for i in orders[0]) and moved.heads[0] == f"L0H{orders[2][0]}"
    plain = organize(array)
    relabelled = NetworkTensor(array, queries=tuple("lkjihgfedcba"), heads=tensor.heads)
    assert found == organize(tensor) and found != plain and found != organize(relabelled)
    np.testing.assert_array_equal(plain.reordered(), array[np.ix_(*(tree.order for tree in plain.trees))])
    assert found.embedding().shape == (8, 3) and found.embedding(2, axis=0).shape == (12, 2)
    assert isinstance(found, Organization) and "12 × 10 × 8" in repr(found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: organize(np.full((3, 3, 3), np.nan)), "NaN or Inf"),
        (lambda: organize(np.zeros((3, 0, 3))), "axis 1 is empty"),
        (lambda: organize(np.zeros(3)), "expected 2-D or 3-D"),
        (lambda: organize(np.ones((3, 3)), iterations=0), "at least one iteration"),
        (lambda: organize(np.ones((3, 3)), tree="oak"), "unknown tree 'oak'"),
        (lambda: organize(np.ones((3, 3)), start="here"), "start 'here'"),
        (lambda: organize(np.ones((3, 3)), device="nowhere"), "device 'nowhere'"),
        (lambda: organize(np.ones((3, 3)), device=True), "device True cannot be used"),  # torch takes it for a dtype
        # What `capture` returns for several texts.
        (lambda: organize([NetworkTensor(np.ones((2, 2, 2)))] * 2), "expected real numbers, got list of NetworkTensor"),
        (lambda: organize("a text"), "tensor: expected real numbers, got str$"),
        (lambda: organize([[1, 2], [3]]), "nested lists of different lengths"),
        (lambda: organize(np.ones((3, 3)), iterations=1.5), "iterations is 1.5, expected a whole number"),
        (lambda: organize(np.ones((3, 3)), beta=np.inf), "beta is inf, expected a finite number"),
        (lambda: organize(np.ones((3, 3))).embedding(axis=2), "axis 2: the array has axes 0 to 1"),
        (lambda: organize(np.ones((3, 3))).expand().compare(seed=-1), "seed is -1, expected a whole number from 0 on"),
        (lambda: organize(np.ones((3, 3))).expand().compare(permuted=False).gain(permuted=True), "has no profile"),
        (lambda: planted((8,)), "shape has 1 numbers"),
        (lambda: Tree.dyadic(4).permuted([0.0, 1.0, 2.0, 3.0]), "permutation of 0 … 3"),
        (lambda: paraproduct(np.ones((2, 2)), Tree.dyadic(2), Tree.dyadic(2)).mean(2, 0), "row is 2, expected"),
        (lambda: paraproduct(np.ones((2, 2)), Tree.dyadic(2), Tree.dyadic(2), np.tanh), "expected \\(A, A', A''\\)"),
        (lambda: NetworkTensor(np.ones((2, 2, 2))).take([0], [0], [True, False]), "heads: True, expected whole"),
        (lambda: NetworkTensor(np.ones((2, 2, 2))).take([0], [2], [0]), "keys: 2, expected whole numbers from 0 to 1"),
    ],
)
def test_bad_input_raises_an_error_that_names_it(call, message):
    with pytest.raises(InputError, match=message):
        call()


def rewrite_about(path, change):
    """Apply `change` to the JSON part of a saved result."""
    with np.load(path) as stored:
        arrays = dict(stored)
    about = json.loads(arrays["about"].tobytes().decode())
    change(about)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about["settings"].pop("alpha"), "has unexpected content"),
        (lambda about: about["settings"].update(epsilon="wide"), "has unexpected content"),
        (lambda about: about["settings"].update(tree="oak"), "unknown tree 'oak'"),
        (lambda about: about["history"][0].update(l1="small"), "history: l1 is 'small', expected a number"),
        (lambda about: about["history"][0].update(stage="late"), "history: stage is 'late'"),
        (lambda about: about["history"][0].update(likeness=[1.0]), "history: likeness is"),
    ],
)
def test_saved_settings_and_steps_are_checked(change, message, tmp_path):
    path = organize(planted((8, 7, 5), 0)[0]).save(tmp_path / "organization.npz")
    rewrite_about(path, change)
    with pytest.raises(InputError, match=message):
        Organization.load(path)
