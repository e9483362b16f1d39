"""The dual distance: how far two slices of an axis are apart, seen through the trees of the other axes.

    d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|

is a sum over pairs of folders, bilinear in their weights. Trees that follow one another share most of their folders,
the elements always, so a distance is what the one before was, less the folders gone, plus the folders new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngeo.arrays import Floats, is_torch
from attngeo.errors import InputError
from attngeo.organization.checks import checked, checked_axis
from attngeo.organization.geometry.folder_distance import FolderDistances, Weighted
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.trees.tree import Tree

SAME = 1e-12  # weights that differ by less, relatively, differ by rounding


def tree_distance(array: Any, axis: int, trees: Mapping[int, Tree], alpha: float = 0.0, beta: float = 1.0) -> Floats:
    """[n, n] distances of the slices of `axis`: the weighted l1 distance of their means over all folders,

        d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|,   w(F) = (|F|/n)^β · 2^{−level·α}

    with the root on level 0. `trees` maps every other axis to its tree; `array` is a matrix or a 3-tensor.

    >>> array = np.array([[1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 7.0], [0.0, 0.0, 0.0, 0.0]])
    >>> tree_distance(array, axis=0, trees={1: Tree.dyadic(4)})
    array([[ 0. ,  1.5,  9. ],
           [ 1.5,  0. , 10.5],
           [ 9. , 10.5,  0. ]])
    """
    array = checked(array)
    axis = checked_axis(axis, array.ndim)
    found = {checked_axis(other, array.ndim): tree for other, tree in trees.items()}
    return SliceDistances(array, axis).through(found, alpha, beta)


@dataclass(frozen=True)
class _Seen:
    """Distances through two weighted trees."""

    first: Weighted
    second: Weighted
    distances: Floats  # [n, n]


@dataclass(frozen=True)
class _Changes:
    """What became of the weights of a tree: gone (of its folders before), common and new (of its folders now)."""

    gone: Weighted
    common: Weighted
    new: Weighted


class SliceDistances:
    """The slices of one axis and the last distances between them, from which the next are made."""

    def __init__(self, array: Any, axis: int, scratch: Scratch | None = None) -> None:
        self._shape, self._axis = tuple(array.shape), axis
        slices = array.movedim(axis, 0) if is_torch(array) else slices_first(array, axis)  # [n, a] or [n, a, b]
        slices = slices[:, :, None] if slices.ndim == 2 else slices
        self._folders = FolderDistances(slices, Scratch() if scratch is None else scratch)
        self._seen: list[_Seen] = []  # through single elements, then through the last trees

    def through(self, trees: Mapping[int, Tree], alpha: float, beta: float) -> Floats:
        """[n, n] distances through the trees of the other axes."""
        pair = self._checked(trees)
        # Weights are kept relative to a single element on the last level, which counts in every tree alike.
        first, second = (Weighted(tree.folders, tree.folders.heights(alpha, beta)) for tree in pair)
        if self._seen:
            plans = [(seen, _compare(seen.first, first), _compare(seen.second, second)) for seen in self._seen]
            distances = self._changed(*min(plans, key=_cost), second)
        else:
            alone = _elements(first), _elements(second)
            ones, others = _compare(alone[0], first), _compare(alone[1], second)
            passes = [(ones.common, (others.common, others.new)), (ones.new, (second,))]
            (elements, above), (rest,) = self._folders.through(passes)
            self._seen.append(_Seen(*alone, elements))
            distances = elements + above + rest
        self._seen[1:] = [_Seen(first, second, distances)]
        unit = [float(tree.size) ** -beta * 2.0 ** (-alpha * (tree.depth - 1)) for tree in pair]
        return np.asarray(distances * (unit[0] * unit[1]))

    def _changed(self, seen: _Seen, one: _Changes, two: _Changes, second: Weighted) -> Floats:
        """Distances through trees that differ from those seen.

        With C common, G gone and N new, and u = C + G, v the weights before, u' = C + N, v' those now,
        d(u', v') = d(u, v) − d(G₁, v) − d(C₁, G₂) + d(C₁, N₂) + d(N₁, v').
        """
        ((first_gone,),) = self._folders.through([(one.gone, (seen.second,))])
        passes = [(one.common, (two.gone, two.new)), (one.new, (second,))]
        (second_gone, second_new), (first_new,) = self._folders.through(passes)
        return np.maximum(seen.distances - first_gone - second_gone + second_new + first_new, 0.0)

    def _checked(self, trees: Mapping[int, Tree]) -> tuple[Tree, Tree]:
        found = []
        for other, size in enumerate(self._shape):
            if other == self._axis:
                continue
            if other not in trees:
                raise InputError(f"tree_distance: the tree of axis {other} is missing")
            if trees[other].size != size:
                raise InputError(f"tree of axis {other}: has {trees[other].size} elements, the array has {size} there")
            found.append(trees[other])
        return (found[0], found[1]) if len(found) == 2 else (found[0], Tree([[0]]))


def _elements(tree: Weighted) -> Weighted:
    """Single elements alone, weight 1."""
    single = np.arange(tree.folders.count) < tree.folders.size[-1]
    return Weighted(tree.folders, np.where(single, 1.0, 0.0))


def _compare(before: Weighted, now: Weighted) -> _Changes:
    places = now.folders.members
    match = np.asarray([places.get(key, -1) for key in before.folders.members])
    was = np.zeros(now.folders.count)
    was[match[match >= 0]] = before.weights[match >= 0]
    common = np.minimum(was, now.weights)
    left = before.weights - np.where(match >= 0, common[match], 0.0)
    gone = np.where(left > SAME * before.weights, left, 0.0)
    new = np.where(now.weights - common > SAME * now.weights, now.weights - common, 0.0)
    return _Changes(*(Weighted(x.folders, w) for x, w in ((before, gone), (now, common), (now, new))))


def _cost(plan: tuple[_Seen, _Changes, _Changes]) -> int:
    """Pairs of folders to go through."""
    seen, one, two = plan
    count = {name: len(side.chosen) for name, side in vars(two).items()}
    pairs = len(one.gone.chosen) * len(seen.second.chosen) + len(one.common.chosen) * (count["gone"] + count["new"])
    return pairs + len(one.new.chosen) * (count["common"] + count["new"])
