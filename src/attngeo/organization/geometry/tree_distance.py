"""The tree distance (dual distance, tree EMD) between slices of an axis, given the trees of the other axes.

    d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|,     w(F) = (|F|/n)^β · 2^{−α·level}

The sum runs over all folders of all levels, and the root is on level 0. `tree_distance` computes it once.
`SliceDistances` computes it again and again while the trees change. The sum is bilinear in the weights, and successive
trees share most of their folders (always the single elements), so the new distance is the previous one minus the
contribution of the removed folders plus that of the added ones. The contribution of given folders is computed in
`folder_mean_distance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attngeo.arguments import finite_number
from attngeo.arrays import AnyArray, ArrayInput, Floats, is_torch
from attngeo.errors import InputError
from attngeo.organization.checks import checked, checked_axis
from attngeo.organization.geometry.folder_mean_distance import FolderMeanDistances, WeightedFolders
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.trees.tree import Tree

ROUNDING = 1e-12  # a smaller relative difference of two weights is rounding


def tree_distance(
    array: ArrayInput, axis: int, trees: Mapping[int, Tree], alpha: float = 0.0, beta: float = 1.0
) -> Floats:
    """Return the [n, n] tree distances between the slices of `axis`: the weighted l1 distance of their folder means,

        d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|,   w(F) = (|F|/n)^β · 2^{−α·level}

    array: a matrix or a 3-tensor, NumPy or torch; a slice of a matrix is a vector, and the sum is over F₁ alone
    trees: the tree of every other axis; the root is on level 0

    >>> array = np.array([[1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 7.0], [0.0, 0.0, 0.0, 0.0]])
    >>> tree_distance(array, axis=0, trees={1: Tree.dyadic(4)})
    array([[ 0. ,  1.5,  9. ],
           [ 1.5,  0. , 10.5],
           [ 9. , 10.5,  0. ]])
    """
    values = checked(array)
    axis = checked_axis(axis, values.ndim)
    by_axis = {checked_axis(other, values.ndim): tree for other, tree in trees.items()}
    return SliceDistances(values, axis).through(by_axis, finite_number(alpha, "alpha"), finite_number(beta, "beta"))


@dataclass(frozen=True)
class _Known:
    """A distance computed before, and the weighted folders it was computed through."""

    first: WeightedFolders
    second: WeightedFolders
    distances: Floats  # [n, n]


@dataclass(frozen=True)
class _Changes:
    """How the weights of a tree changed: removed (on its former folders), common and added (on its present ones)."""

    removed: WeightedFolders
    common: WeightedFolders
    added: WeightedFolders


class SliceDistances:
    """The slices of one axis, and the last distances between them, from which the next ones are computed."""

    def __init__(self, array: AnyArray, axis: int, scratch: Scratch | None = None) -> None:
        self._shape, self._axis = tuple(array.shape), axis
        slices = array.movedim(axis, 0) if is_torch(array) else slices_first(array, axis)  # [n, a] or [n, a, b]
        slices = slices[:, :, None] if slices.ndim == 2 else slices
        self._folders = FolderMeanDistances(slices, Scratch() if scratch is None else scratch)
        self._known: list[_Known] = []  # through single elements only, then through the last trees

    def through(self, trees: Mapping[int, Tree], alpha: float, beta: float) -> Floats:
        """Return the [n, n] tree distances given the trees of the other axes."""
        pair = self._checked(trees)
        # Weights are relative to a single element on the last level, which has the same weight in every tree.
        first, second = (WeightedFolders(tree.folders, tree.folders.weights(alpha, beta)) for tree in pair)
        if self._known:
            plans = [(known, _compare(known.first, first), _compare(known.second, second)) for known in self._known]
            distances = self._updated(*min(plans, key=_cost), second)
        else:
            singles = _single_elements(first), _single_elements(second)
            one, two = _compare(singles[0], first), _compare(singles[1], second)
            passes = [(one.common, (two.common, two.added)), (one.added, (second,))]
            (elements, above), (rest,) = self._folders.through(passes)
            self._known.append(_Known(*singles, elements))
            distances = elements + above + rest
        self._known[1:] = [_Known(first, second, distances)]
        unit = [float(tree.size) ** -beta * 2.0 ** (-alpha * (tree.depth - 1)) for tree in pair]
        return np.asarray(distances * (unit[0] * unit[1]))

    def _updated(self, known: _Known, one: _Changes, two: _Changes, second: WeightedFolders) -> Floats:
        """Return the distances through trees that differ from the known ones.

        Let C be the common, R the removed and A the added weights, u = C₁ + R₁ and v = C₂ + R₂ the former weights of
        the two trees, u' = C₁ + A₁ and v' = C₂ + A₂ the present ones. Then, because d is bilinear,

            d(u', v') = d(u, v) − d(R₁, v) − d(C₁, R₂) + d(C₁, A₂) + d(A₁, v').
        """
        ((first_removed,),) = self._folders.through([(one.removed, (known.second,))])
        passes = [(one.common, (two.removed, two.added)), (one.added, (second,))]
        (second_removed, second_added), (first_added,) = self._folders.through(passes)
        return np.maximum(known.distances - first_removed - second_removed + second_added + first_added, 0.0)

    def _checked(self, trees: Mapping[int, Tree]) -> tuple[Tree, Tree]:
        """Return the trees of the two other axes; a matrix gets a second tree with a single element."""
        others = []
        for other, size in enumerate(self._shape):
            if other == self._axis:
                continue
            if other not in trees:
                raise InputError(f"tree_distance: the tree of axis {other} is missing")
            if trees[other].size != size:
                raise InputError(f"tree of axis {other}: has {trees[other].size} elements, the array has {size} there")
            others.append(trees[other])
        return (others[0], others[1]) if len(others) == 2 else (others[0], Tree([[0]]))


def _single_elements(tree: WeightedFolders) -> WeightedFolders:
    """Return the same folders with weight 1 for single elements and 0 for all others."""
    single = np.arange(tree.folders.count) < tree.folders.size[-1]
    return WeightedFolders(tree.folders, np.where(single, 1.0, 0.0))


def _compare(before: WeightedFolders, now: WeightedFolders) -> _Changes:
    """Split the weights of two trees of one axis into removed, common and added ones."""
    numbers = now.folders.members
    match = np.asarray([numbers.get(key, -1) for key in before.folders.members])
    was = np.zeros(now.folders.count)
    was[match[match >= 0]] = before.weights[match >= 0]
    common = np.minimum(was, now.weights)
    left = before.weights - np.where(match >= 0, common[match], 0.0)
    removed = np.where(left > ROUNDING * before.weights, left, 0.0)
    added = np.where(now.weights - common > ROUNDING * now.weights, now.weights - common, 0.0)
    return _Changes(*(WeightedFolders(x.folders, w) for x, w in ((before, removed), (now, common), (now, added))))


def _cost(plan: tuple[_Known, _Changes, _Changes]) -> int:
    """Return the number of pairs of folders that an update has to visit."""
    known, one, two = plan
    count = {name: len(side.chosen) for name, side in vars(two).items()}
    removed = len(one.removed.chosen) * len(known.second.chosen)
    changed = len(one.common.chosen) * (count["removed"] + count["added"])
    return removed + changed + len(one.added.chosen) * (count["common"] + count["added"])
