"""Random matrices and tensors with a known ("planted") tree per axis, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.tree import Tree

FIELDS = 6  # random fields per axis
DECAY = 0.55  # factor from one level of a field to the next
NOISE = 0.02  # standard deviation of the noise, relative to that of the tensor


def planted(shape: Sequence[int], seed: int = 0) -> tuple[Floats, tuple[Tree, ...]]:
    """Return a matrix or 3-tensor that varies slowly along one random binary tree per axis, and those trees.

    Each folder of a tree is cut at 35 to 65% of its size. The tensor is X = 1 + Σ_k f_k ⊗ g_k ⊗ h_k with 6 fields per
    axis; a field is the sum over levels j ≥ 1 of 0.55^j times an independent N(0, 1) number per folder. Noise with
    0.02 of the standard deviation of X is added, and each axis is shuffled.

    >>> array, trees = planted((16, 12, 8), seed=0)
    >>> array.shape, trees[2]
    ((16, 12, 8), Tree(n=8, folders 1 · 2 · 4 · 7 · 8))
    """
    shape = [whole_number(n, "shape", 1) for n in shape]
    if len(shape) not in (2, 3):
        raise InputError(f"shape has {len(shape)} numbers, expected those of a matrix or a 3-tensor")
    rng = np.random.default_rng(whole_number(seed, "seed"))
    # Both parts of a cut have an element.
    trees = [Tree.cut(n, lambda a, b: a + round(rng.uniform(0.35, 0.65) * (b - a))) for n in shape]
    fields = [_fields(tree, rng) for tree in trees]  # [n, fields] per axis
    letters = "abc"[: len(shape)]
    product = ",".join(letter + "k" for letter in letters) + "->" + letters
    array = 1.0 + np.einsum(product, *fields)
    array = array + NOISE * array.std() * rng.standard_normal(array.shape)
    orders = [rng.permutation(n) for n in shape]
    shuffled: Floats = np.ascontiguousarray(array[np.ix_(*orders)])
    return shuffled, tuple(tree.permuted(order) for tree, order in zip(trees, orders, strict=True))


def _fields(tree: Tree, rng: np.random.Generator) -> Floats:
    """Return [n, FIELDS] random fields that vary slowly along `tree`."""
    fields = np.zeros((tree.size, FIELDS))
    for level in range(1, tree.depth):
        draws = rng.standard_normal((tree.widths[level], FIELDS))
        fields += DECAY**level * draws[tree.levels[level]]
    return fields
