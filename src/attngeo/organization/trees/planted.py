"""Tensors with a hierarchy put into them: what organising must find again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from attngeo.arrays import Floats
from attngeo.organization.trees.tree import Tree

FIELDS = 6
DECAY = 0.55
NOISE = 0.02


def planted(shape: Sequence[int], seed: int = 0) -> tuple[Floats, tuple[Tree, ...]]:
    """A matrix or 3-tensor that varies slowly along one random binary tree an axis, shuffled, and those trees.

    Every folder is cut at 35–65% of its size. X = 1 + Σ_k f_k ⊗ g_k ⊗ h_k over 6 fields an axis, each the sum over
    levels j ≥ 1 of 0.55^j N(0, 1), one draw a folder; noise of 0.02 of the standard deviation; every axis shuffled.

    >>> array, trees = planted((16, 12, 8), seed=0)
    >>> array.shape, trees[2]
    ((16, 12, 8), Tree(n=8, folders 1 · 2 · 4 · 7 · 8))
    """
    rng = np.random.default_rng(seed)
    trees = [_random_tree(n, rng) for n in shape]
    fields = [_fields(tree, rng) for tree in trees]  # [n, fields] each
    letters = "abc"[: len(shape)]
    product = ",".join(letter + "k" for letter in letters) + "->" + letters
    array = 1.0 + np.einsum(product, *fields)
    array = array + NOISE * array.std() * rng.standard_normal(array.shape)
    orders = [rng.permutation(n) for n in shape]
    shuffled: Floats = np.ascontiguousarray(array[np.ix_(*orders)])
    return shuffled, tuple(tree.permuted(order) for tree, order in zip(trees, orders, strict=True))


def _random_tree(n: int, rng: np.random.Generator) -> Tree:
    levels, bounds = [], [0, n]
    while True:
        levels.append(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
        if len(bounds) == n + 1:
            return Tree(np.stack(levels))
        cuts = []
        for a, b in pairwise(bounds):
            if b - a > 1:
                cuts.append(a + min(max(round(rng.uniform(0.35, 0.65) * (b - a)), 1), b - a - 1))
        bounds = sorted(bounds + cuts)


def _fields(tree: Tree, rng: np.random.Generator) -> Floats:
    fields = np.zeros((tree.size, FIELDS))
    for level in range(1, tree.depth):
        draws = rng.standard_normal((tree.widths[level], FIELDS))
        fields += DECAY**level * draws[tree.levels[level]]
    return fields
