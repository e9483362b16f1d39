"""Trees: what is one, what is not, and building them on every input there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.organization import Tree, binary_tree, flexible_tree, planted
from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.tree_agreement import closeness_correlation
from attngeo.organization.geometry.diffusion import diffusion, diffusion_map
from tests.organization.made_arrays import random_tree

GROW = (flexible_tree, binary_tree)


def whole(tree: Tree, n: int) -> None:
    """Rebuilding it is the validation."""
    assert tree.size == n
    assert Tree(tree.levels, tree.order) == tree


def test_labels_are_ranks_of_smallest_elements():
    tree = Tree([[7, 7, 7, 7], [3, -1, 3, -1], [9, 2, 4, 30]])
    np.testing.assert_array_equal(tree.levels, [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    np.testing.assert_array_equal(tree.order, [0, 2, 1, 3])
    assert repr(tree) == "Tree(n=4, folders 1 · 2 · 4)"
    assert tree == Tree(tree.levels) and hash(tree) == hash(Tree(tree.levels))
    assert tree != Tree(tree.levels, [1, 3, 0, 2])
    with pytest.raises(ValueError):
        tree.levels[0, 0] = 1


@pytest.mark.parametrize(
    ("levels", "order", "says"),
    [
        ([0, 1], None, "expected integer levels"),
        ([[0.0, 0.0], [0.0, 1.0]], None, "expected integer levels"),
        (np.zeros((2, 0), int), None, "expected integer levels"),
        ([[0, 1], [0, 1]], None, "level 0 must be one folder"),
        ([[0, 0, 0], [0, 0, 1]], None, "must be 3 single elements"),
        ([[0] * 4, [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3]], None, "level 2 does not refine level 1"),
        ([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]], [0, 1, 2, 3], "not depth first"),
        ([[0, 0], [0, 1]], [0, 0], "permutation"),
    ],
)
def test_what_is_not_a_tree_says_why(levels, order, says):
    with pytest.raises(InputError, match=says):
        Tree(levels, order)


def test_dyadic_trees_halve_in_order():
    assert Tree.dyadic(5).levels.tolist() == [[0] * 5, [0, 0, 0, 1, 1], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert Tree.dyadic(1).levels.tolist() == [[0]]
    with pytest.raises(InputError):
        Tree.dyadic(0)


@given(n=st.integers(1, 40), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_distinct_folders_cover_the_tree(n, seed, lopsided):
    tree = random_tree(n, seed, lopsided)
    folders = tree.folders
    distinct = {tuple(np.flatnonzero(row == label)) for row in tree.levels for label in range(row.max() + 1)}
    found = {tuple(np.flatnonzero(row)) for row in folders.inside}
    assert found == distinct and folders.count == len(distinct)
    # Weights add up over levels, whatever was merged.
    for alpha, beta in ((0.0, 1.0), (1.0, 0.0), (0.7, 0.3)):
        direct = sum(
            (np.bincount(row) / n) ** beta @ np.full(row.max() + 1, 2.0 ** (-alpha * level))
            for level, row in enumerate(tree.levels)
        )
        unit = n**-beta * 2.0 ** (-alpha * (tree.depth - 1))
        assert unit * folders.weights(alpha, beta).sum() == pytest.approx(direct, rel=1e-12)


@given(n=st.integers(1, 30), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_permuting_and_back(n, seed):
    tree = random_tree(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    assert tree.permuted(order).permuted(np.argsort(order)) == tree
    np.testing.assert_allclose(tree.permuted(order).closeness(), tree.closeness()[np.ix_(order, order)])


@pytest.mark.parametrize("grow", GROW)
def test_permuting_an_axis_permutes_its_tree(grow):
    array, _ = planted((41, 30, 12), seed=3)
    affinity = cosine_affinity(array, 0)
    order = np.random.default_rng(0).permutation(41)
    permuted = grow(cosine_affinity(array[order], 0))
    np.testing.assert_array_equal(permuted.levels, grow(affinity).permuted(order).levels)


def blocks(*sizes: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    parts = [rng.random((size, size)) for size in sizes]
    affinity = np.zeros((sum(sizes), sum(sizes)))
    at = 0
    for part in parts:
        affinity[at : at + len(part), at : at + len(part)] = part + part.T + 0.1
        at += len(part)
    return affinity


HARD = {
    "one": np.ones((1, 1)),
    "one, not even near itself": np.zeros((1, 1)),
    "two": np.array([[1.0, 0.3], [0.3, 1.0]]),
    "two strangers": np.eye(2),
    "constant": np.ones((9, 9)),
    "zeros": np.zeros((7, 7)),
    "identity": np.eye(12),
    "all below the threshold": np.full((6, 6), 1e-9),
    "duplicates": np.kron(
        affinity_from_distance(np.abs(np.subtract.outer(range(6), range(6))) ** 1.3), np.ones((3, 3))
    ),
    "components": blocks(5, 1, 8, 2, 1),
    "two components": blocks(20, 20),
    "bipartite": np.kron([[0, 1], [1, 0]], np.ones((4, 4))),
    "nearly constant": 1 - 1e-13 * np.abs(np.subtract.outer(np.arange(30), np.arange(30))),
    "equidistant": np.eye(16) + 0.5,
    "chain": np.eye(33) + np.eye(33, k=1) + np.eye(33, k=-1),
    "steep": np.exp(-np.abs(np.subtract.outer(np.arange(40.0), np.arange(40.0))) * 0.4) ** 2,
}


@pytest.mark.parametrize("grow", GROW)
@pytest.mark.parametrize("name", HARD)
def test_every_affinity_has_a_tree(grow, name):
    affinity = HARD[name]
    whole(grow(affinity), len(affinity))


def test_identical_rows_join_in_one_first_level():
    tree = flexible_tree(HARD["duplicates"])
    np.testing.assert_array_equal(tree.levels[-2], np.repeat(np.arange(6), 3))
    assert flexible_tree(HARD["constant"]).widths == (1, 9)


def test_components_meet_only_at_the_root():
    labels = np.repeat(np.arange(5), (5, 1, 8, 2, 1))
    affinity = HARD["components"]
    np.testing.assert_array_equal(diffusion(affinity).components, labels)
    tree = flexible_tree(affinity)
    np.testing.assert_array_equal(tree.levels[1], labels)
    halves = binary_tree(HARD["two components"])
    np.testing.assert_array_equal(halves.levels[1], np.repeat([0, 1], 20))


def test_binary_trees_halve():
    tree = binary_tree(cosine_affinity(planted((37, 20, 5), 0)[0], 0))
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        for folder in range(above.max() + 1):
            sizes = np.unique(below[above == folder], return_counts=True)[1]
            assert len(sizes) <= 2 and (len(sizes) == 1 or abs(sizes[0] - sizes[1]) <= 1)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 30), kind=st.sampled_from(["noise", "negative", "few values"]))
@settings(max_examples=40, deadline=None)
def test_trees_of_any_matrix(seed, n, kind):
    rng = np.random.default_rng(seed)
    array = rng.standard_normal((n, 6))
    array = -np.abs(array) if kind == "negative" else np.sign(array.round()) if kind == "few values" else array
    for affinity in (cosine_affinity(array, 0), gaussian_affinity(array, 0)):
        for grow in GROW:
            whole(grow(affinity), n)


def test_bad_affinities_say_why():
    for affinity, says in (
        (np.ones((2, 3)), "square"),
        (-np.eye(3), "negative"),
        (np.array([[1.0, 0.2], [0.5, 1.0]]), "symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN"),
        (np.ones((0, 0)), "empty"),
    ):
        for grow in (*GROW, diffusion_map):
            with pytest.raises(InputError, match=says):
                grow(affinity)
    with pytest.raises(InputError, match="constant"):
        flexible_tree(np.eye(2), constant=0)


def test_a_larger_constant_makes_finer_trees():
    affinity = cosine_affinity(planted((64, 40, 12), 1)[0], 0)
    assert flexible_tree(affinity, 4.0).widths[-2] >= flexible_tree(affinity, 0.25).widths[-2]


@given(n=st.integers(3, 40), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_correlation_of_closeness_is_that_of_all_pairs(n, seed, lopsided):
    one, two = random_tree(n, seed, lopsided), random_tree(n, seed + 1)
    pairs = np.triu_indices(n, 1)
    a, b = one.closeness()[pairs], two.closeness()[pairs]
    found = closeness_correlation(one, two)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert found == (np.ptp(a) == np.ptp(b))
    else:
        assert found == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-9)
    assert closeness_correlation(one, one) == 1.0
