"""The tree distance (dual distance, tree EMD) between slices of an axis, given the trees of the other axes.

    d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|,     w(F) = (|F|/n)^β · 2^{−α·level}

The sum runs over all folders of all levels, and the root is on level 0. It is an l1 distance between points with very
many coordinates, one per pair of folders, which are never stored all at once. l1 distances and norms of other points
are computed here too. Each is computed by numba kernels, by SciPy without numba, and for torch tensors by Triton or
torch.cdist.

Threads change no digit: coordinates are divided into groups that depend only on the size of the problem, each group is
summed on its own, and the groups are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from attngeo.arguments import finite_number
from attngeo.arrays import AnyArray, ArrayInput, Floats, Ints, is_torch, namespace
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import kernels
from attngeo.organization.checks import checked, checked_axis
from attngeo.organization.tree import Folders, Tree

Weighted: TypeAlias = tuple[Folders, Floats]  # the folders of a tree, and the weight of each

ROUNDING = 1e-12  # a smaller relative difference of two weights is rounding
GROUPS, FEWEST = 16, 4  # number of groups, and the least number if their sums are large
LARGE = 1 << 26  # bytes of group sums above which there are fewer groups
WORTH = 4e7  # operations that justify a group, whose matrix must be cleared and added
BLOCK_BYTES = 1 << 28  # memory for a block of coordinates where no compiled kernel is used
CHUNK = 1 << 20  # numbers of an l1 norm that are summed at a time


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
    others = [other for other in range(values.ndim) if other != axis]
    for other in others:
        if other not in by_axis:
            raise InputError(f"tree_distance: the tree of axis {other} is missing")
        if (size := by_axis[other].size) != values.shape[other]:
            raise InputError(f"tree of axis {other}: has {size} elements, the array has {values.shape[other]} there")
    alpha, beta = finite_number(alpha, "alpha"), finite_number(beta, "beta")
    return SliceDistances().through(slices_first(values, axis), [by_axis[other] for other in others], alpha, beta)


def slices_first(array: AnyArray, axis: int, dtype: type[np.float64] | None = None) -> Any:
    """Return a contiguous array whose first axis is `axis`, without a copy if the memory already has that order.

    dtype: of the result, which is then always a copy; by default that of the array
    """
    if is_torch(array):
        return array.movedim(axis, 0).contiguous()  # [n, ...]
    moved = np.moveaxis(array, axis, 0)  # [n, ...]
    if dtype is None and moved.flags.c_contiguous:
        return moved
    copy = np.empty(moved.shape, dtype or moved.dtype)
    if axis == array.ndim - 1 and array.flags.c_contiguous:  # a transpose, in blocks that fit the cache
        source, target = array.reshape(-1, len(moved)).T, copy.reshape(len(moved), -1)
        parts = -(-target.shape[1] // 512)
        threads.spread(lambda lo, hi: np.copyto(target[:, lo:hi], source[:, lo:hi]), target.shape[1], parts)
    else:
        threads.spread(lambda lo, hi: np.copyto(copy[lo:hi], moved[lo:hi]), len(moved), cost=moved.size)
    return copy


class SliceDistances:
    """The tree distances between the slices of one axis, computed from the last ones while the trees change.

    The sum is bilinear in the weights, and successive trees share most of their folders (always the single elements).
    Let u and v be the former weights of the two trees, u' and v' the present ones; let C be the common part of the
    weights, R what was removed and A what was added, so that u = C₁ + R₁ and u' = C₁ + A₁. Then

        d(u', v') = d(u, v) − d(R₁, v) − d(C₁, R₂) + d(C₁, A₂) + d(A₁, v').
    """

    def __init__(self) -> None:
        self._known: tuple[Weighted, Weighted, Floats] | None = None

    def through(self, slices: AnyArray, trees: Sequence[Tree], alpha: float, beta: float) -> Floats:
        """Return the [n, n] distances between slices [n, a] or [n, a, b], given the trees of the other axes."""
        if slices.ndim == 2:
            slices, trees = slices[:, :, None], [trees[0], Tree([[0]])]
        first, second = ((tree.folders, tree.folders.weights(alpha, beta)) for tree in trees)
        steps = [(1, first, second)]  # sign, weights of both trees
        distances: Floats = np.zeros((slices.shape[0],) * 2)
        if self._known is not None:
            *before, known = self._known
            (removed, common, added), (removed_b, _, added_b) = map(_changes, before, (first, second))
            update = [(-1, removed, before[1]), (-1, common, removed_b), (1, common, added_b), (1, added, second)]
            if sum(map(_pairs, update)) < _pairs(steps[0]):
                steps, distances = update, known
        sums: dict[int, Floats] = {}
        for sign, one, two in steps:
            distances = distances + sign * _folder_distances(slices, one, two, sums)
        distances = np.maximum(distances, 0.0)
        self._known = (first, second, distances)
        unit = [float(tree.size) ** -beta * 2.0 ** (-alpha * (tree.depth - 1)) for tree in trees]
        return np.asarray(distances * (unit[0] * unit[1]))


def _pairs(step: tuple[int, Weighted, Weighted]) -> int:
    """Return the number of pairs of folders to visit."""
    return int(np.count_nonzero(step[1][1]) * np.count_nonzero(step[2][1]))


def _changes(before: Weighted, now: Weighted) -> tuple[Weighted, Weighted, Weighted]:
    """Split the weights of two trees of one axis into those that were removed, are common and were added."""
    (old, was), (new, weights) = before, now
    match = np.asarray([new.members.get(key, -1) for key in old.members])
    common = np.zeros(new.count)
    common[match[match >= 0]] = np.minimum(was[match >= 0], weights[match[match >= 0]])
    removed, added = was - np.where(match >= 0, common[match], 0.0), weights - common
    removed[removed <= ROUNDING * was] = 0.0
    added[added <= ROUNDING * weights] = 0.0
    return (old, removed), (new, common), (new, added)


def _folder_distances(slices: AnyArray, first: Weighted, second: Weighted, sums: dict[int, Floats]) -> Floats:
    """Return the l1 distances [n, n] of slices [n, a, b] in their weighted means over pairs of folders.

    sums: the last sums over folders of the middle axis, by `id` of the folders, which the next call may use again
    """
    n = slices.shape[0]
    (one, two), scales = (first[0], second[0]), [weights / folders.size for folders, weights in (first, second)]
    chosen, chosen_b = map(np.flatnonzero, scales)  # a folder of weight 0 is left out
    if not len(chosen) or not len(chosen_b):
        return np.zeros((n, n))
    if is_torch(slices) or (jit := kernels.cpu()) is None:
        rows, columns = one.inside * scales[0][:, None], two.inside * scales[1][:, None]
        return _dense_distances(slices, rows[chosen], columns[chosen_b])
    # Without a common centre sums of minima are small. Sixteen slices estimate it well enough.
    centre = slices[:: -(-n // 16)].mean(0, dtype=np.float64)  # [a, b]
    if id(one) not in sums:
        sums.clear()
        total = sums[id(one)] = np.empty((n, one.count - slices.shape[1], slices.shape[2]))
        fill = jit.folder_sums
        threads.spread(lambda lo, hi: fill(slices, centre, one.start, one.child, total, lo, hi), n, cost=slices.size)

    def work(lo: int, hi: int, part: Floats) -> None:
        folders = (chosen, scales[0], two.start, two.child, chosen_b, scales[1])
        jit.folder_minima(slices, centre, sums[id(one)], *folders, part, lo, hi)

    side = -(-n // jit.SIDE) * jit.SIDE
    cost = n * len(chosen) * (0.5 * n * len(chosen_b) + 8 * slices.shape[2])
    minima = sum_in_groups(work, -(-len(chosen) // jit.FOLDERS), (side, side), cost)[:n, :n]
    return _from_minima(minima, np.diag(minima), np.diag(minima), True)


def _dense_distances(slices: AnyArray, rows: Any, columns: Any) -> Floats:
    """Return the distances [n, n] of rows [folders, a] @ slices [n, a, b] @ columns [folders, b]ᵀ, block by block."""
    n = slices.shape[0]
    if is_torch(slices):
        slices, rows, columns = slices.double(), *(slices.new_tensor(x).double() for x in (rows, columns))
    total = np.zeros((n, n))
    step = max(1, BLOCK_BYTES // (8 * n * len(columns)))
    for lo in range(0, len(rows), step):
        part = rows[lo : lo + step] @ slices  # [n, step, b]
        total += l1_distances((part @ columns.T).reshape(n, -1), np.arange(n))  # of [n, step · folders]
    return total


def l1_distances(points: AnyArray, rows: Ints, columns: Ints | None = None) -> Floats:
    """Return the [rows, columns] l1 distances between two choices of the points [n, k], as a NumPy array.

    columns: by default the same as `rows`; the result is then symmetric to the last bit
    """
    upper = columns is None
    columns = rows if columns is None else columns
    if not len(rows) or not len(columns):
        return np.zeros((len(rows), len(columns)))
    if is_torch(points):
        chosen = [points.new_tensor(x).long() for x in ((rows,) if upper else (rows, columns))]
        sides = [points[x].double().T.contiguous() for x in chosen]  # [k, rows], [k, columns]
        distances: Floats = np.asarray(_torch_l1(sides[0], sides[-1]).cpu().numpy())
        return _mirrored(distances) if upper else distances
    if (jit := kernels.cpu()) is None:
        from scipy.spatial.distance import cdist

        return np.asarray(cdist(points[rows], points[columns], "cityblock"))
    points = np.ascontiguousarray(points, np.float64)
    r, c = len(rows), len(columns)
    shape = -(-(r + 1) // jit.SIDE) * jit.SIDE, -(-(c + 1) // jit.SIDE) * jit.SIDE

    def work(lo: int, hi: int, part: Floats) -> None:
        jit.point_minima(points, rows, columns, part, upper, lo, hi)

    minima = sum_in_groups(work, points.shape[1], shape, 0.5 * points.shape[1] * prod(shape))
    return _from_minima(minima[:r, :c], minima[:r, c], minima[:r, c] if upper else minima[r, :c], upper)


def _torch_l1(a: Any, b: Any) -> Any:
    """Return the [rows, columns] l1 distances between points a [k, rows] and b [k, columns]."""
    import torch

    if a.is_cuda and (gpu := kernels.gpu()) is not None:
        return gpu.l1_tiles(a, b)
    distances = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    # Blocks keep both sides in cache; torch.cdist reads each pair of rows anew.
    for lo in range(0, len(a), 4096):
        x, y = (side[lo : lo + 4096].T.contiguous() for side in (a, b))
        distances += torch.cdist(x, y, p=1.0)
    return distances


def _from_minima(minima: Floats, left: Floats, right: Floats, upper: bool) -> Floats:
    """Return |a − b| = a + b − 2 min(a, b) from sums of minima [n, m] and the sums of the points, [n] and [m]."""
    distances: Floats = np.maximum(left[:, None] + right - 2 * minima, 0.0)
    return _mirrored(distances) if upper else distances


def _mirrored(distances: Floats) -> Floats:
    """Return the symmetric matrix with the entries above the diagonal of `distances`."""
    above = np.triu(distances, 1)
    return np.asarray(above + above.T)


def sum_in_groups(
    work: Callable[[int, int, Floats], object], total: int, shape: tuple[int, int], cost: float
) -> Floats:
    """Return the sum [shape] of what `work(lo, hi, part)` adds to its own part, over spans of 0 … total.

    cost: approximate number of operations
    """
    groups = max(FEWEST, min(GROUPS, LARGE // (8 * prod(shape))))
    parts = np.zeros((min(groups, total, 1 + int(cost / WORTH)), *shape))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            work(total * group // len(parts), total * (group + 1) // len(parts), parts[group])

    threads.spread(task, len(parts), len(parts), cost)
    return np.asarray(parts.sum(0))


def l1_norm(array: AnyArray) -> float:
    """Return Σ|entries|, summed in float64."""
    if is_torch(array):
        return float(abs(array).sum(dtype=namespace(array).float64))
    flat = np.ascontiguousarray(array).reshape(-1)
    sums = np.zeros(-(-flat.size // CHUNK))

    def task(first: int, last: int) -> None:
        for chunk in range(first, last):
            sums[chunk] = np.abs(flat[chunk * CHUNK : (chunk + 1) * CHUNK]).sum(dtype=np.float64)

    threads.spread(task, len(sums), cost=flat.size)
    return float(sums.sum())
