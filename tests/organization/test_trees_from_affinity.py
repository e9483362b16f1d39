"""Flexible and binary trees: they exist for every affinity, and follow components and equal rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.organization import (
    Tree,
    affinity_from_distance,
    binary_tree,
    cosine_affinity,
    diffusion_map,
    flexible_tree,
    gaussian_affinity,
    planted,
)
from attngeo.organization.affinity import diffusion
from attngeo.organization.grow import _join
from attngeo.organization.tree import canonical_labels

BUILDERS = (flexible_tree, binary_tree)


def assert_valid(tree, n):
    """Check that the tree has n elements; constructing it again validates its levels and order."""
    assert tree.size == n
    assert Tree(tree.levels, tree.order) == tree


def block_affinity(*sizes):
    """Return an affinity with one connected component of each size."""
    rng = np.random.default_rng(1)
    parts = [rng.random((size, size)) for size in sizes]
    affinity = np.zeros((sum(sizes), sum(sizes)))
    start = 0
    for part in parts:
        span = slice(start, start + len(part))
        affinity[span, span] = part + part.T + 0.1
        start += len(part)
    return affinity


AFFINITIES = {
    "one": np.ones((1, 1)),
    "one with affinity 0": np.zeros((1, 1)),
    "two": np.array([[1.0, 0.3], [0.3, 1.0]]),
    "two unconnected": np.eye(2),
    "constant": np.ones((9, 9)),
    "zeros": np.zeros((7, 7)),
    "identity": np.eye(12),
    "all below the threshold": np.full((6, 6), 1e-9),
    "duplicates": np.kron(
        affinity_from_distance(np.abs(np.subtract.outer(range(6), range(6))) ** 1.3), np.ones((3, 3))
    ),
    "components": block_affinity(5, 1, 8, 2, 1),
    "two components": block_affinity(20, 20),
    "bipartite": np.kron([[0, 1], [1, 0]], np.ones((4, 4))),
    "nearly constant": 1 - 1e-13 * np.abs(np.subtract.outer(np.arange(30), np.arange(30))),
    "equidistant": np.eye(16) + 0.5,
    "chain": np.eye(33) + np.eye(33, k=1) + np.eye(33, k=-1),
    "steep": np.exp(-np.abs(np.subtract.outer(np.arange(40.0), np.arange(40.0))) * 0.4) ** 2,
}


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_a_tree_exists_for_every_affinity(build, name):
    affinity = AFFINITIES[name]
    assert_valid(build(affinity), len(affinity))


def test_identical_rows_are_joined_first():
    tree = flexible_tree(AFFINITIES["duplicates"])
    np.testing.assert_array_equal(tree.levels[-2], np.repeat(np.arange(6), 3))
    assert flexible_tree(AFFINITIES["constant"]).widths == (1, 9)


def test_components_meet_only_at_the_root():
    labels = np.repeat(np.arange(5), (5, 1, 8, 2, 1))
    affinity = AFFINITIES["components"]
    tree = flexible_tree(affinity)
    np.testing.assert_array_equal(tree.levels[1], labels)
    np.testing.assert_array_equal(binary_tree(affinity).levels[1], labels == 2)  # 8 of 17 elements, the nearest to half
    halves = binary_tree(AFFINITIES["two components"])
    np.testing.assert_array_equal(halves.levels[1], np.repeat([0, 1], 20))


def test_a_folder_of_equal_elements_is_halved_in_their_order():
    np.testing.assert_array_equal(binary_tree(AFFINITIES["constant"]).levels[1], np.repeat([0, 1], (5, 4)))


@pytest.mark.parametrize(("affinity", "components"), [(0.9e-8, [0, 1]), (1.1e-8, [0, 0])])
def test_affinities_up_to_1e_8_do_not_connect(affinity, components):
    np.testing.assert_array_equal(diffusion(np.array([[1.0, affinity], [affinity, 1.0]])).components, components)


def test_binary_trees_halve_every_folder():
    tree = binary_tree(cosine_affinity(planted((37, 20, 5), 0)[0], 0))
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        for folder in range(above.max() + 1):
            sizes = np.unique(below[above == folder], return_counts=True)[1]
            assert len(sizes) <= 2 and (len(sizes) == 1 or abs(sizes[0] - sizes[1]) <= 1)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 30), kind=st.sampled_from(["noise", "negative", "few values"]))
@settings(max_examples=40, deadline=None)
def test_a_tree_exists_for_the_slices_of_any_matrix(seed, n, kind):
    rng = np.random.default_rng(seed)
    array = rng.standard_normal((n, 6))
    array = -np.abs(array) if kind == "negative" else np.sign(array.round()) if kind == "few values" else array
    for affinity in (cosine_affinity(array, 0), gaussian_affinity(array, 0)):
        for build in BUILDERS:
            assert_valid(build(affinity), n)


def test_bad_affinities_raise_an_error_that_message_why():
    for affinity, message in (
        (np.ones((2, 3)), "square"),
        (-np.eye(3), "negative"),
        (np.array([[1.0, 0.2], [0.5, 1.0]]), "symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN"),
        (np.ones((0, 0)), "empty"),
    ):
        for build in (*BUILDERS, diffusion_map):
            with pytest.raises(InputError, match=message):
                build(affinity)
    with pytest.raises(InputError, match="constant"):
        flexible_tree(np.eye(2), constant=0)


def test_an_affinity_with_a_zero_row_has_no_diffusion_map():
    with pytest.raises(InputError, match="row 1 of the affinity sums to 0"):
        diffusion_map(np.diag([1.0, 0.0, 2.0]))


def joined_step_by_step(distances, constant):
    """Return the group of each folder by the rule as it is stated: one smallest entry of the whole matrix at a time."""
    left, median = distances.copy(), np.median(distances)
    groups = [{i} for i in range(len(left))]  # of each folder
    looking = set(range(len(left)))
    joined = False
    while looking:
        row = min(looking, key=lambda i: (left[i].min(), i))
        column = int(left[row].argmin())
        smallest = left[row, column]
        if smallest == np.inf or (joined and smallest >= median):
            break
        sizes = len(groups[row]) * len(groups[column])
        if sizes == 1 or smallest < median / constant * 2.0 ** (1 - sizes):
            both = groups[row] | groups[column]
            for i in both:
                groups[i] = both
            looking -= {row, column}
            joined = True
        else:
            left[row, column] = np.inf
    return [min(group) for group in groups] if joined else [0] * len(left)


@given(seed=st.integers(0, 10**6), m=st.integers(2, 14), constant=st.sampled_from([0.25, 1.0, 4.0]))
@settings(max_examples=200, deadline=None)
def test_folders_are_joined_by_the_rule(seed, m, constant):
    """Whole numbers have many ties, which the order of the folders decides; some folders are in other components."""
    rng = np.random.default_rng(seed)
    distances = np.triu(rng.integers(0, rng.choice([3, 9, 99]), (m, m)), 1).astype(float)
    distances[np.triu(rng.random((m, m)) < 0.1, 1)] = np.inf
    distances += distances.T
    np.fill_diagonal(distances, np.inf)
    expected = canonical_labels(np.asarray(joined_step_by_step(distances, constant)))
    np.testing.assert_array_equal(canonical_labels(_join(distances, constant)), expected)
