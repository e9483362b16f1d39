"""Affinities between the slices of an axis, and diffusion on them.

An affinity is computed from the slices themselves or from a distance matrix. Diffusion is a random walk on it: its
distances at time t join the folders of a tree, and its first coordinates are the diffusion map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import AnyArray, ArrayInput, Bools, Floats, Ints, is_torch, to_numpy
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked, checked_affinity, checked_axis, checked_square
from attngeo.organization.distance import slices_first, sum_in_groups
from attngeo.organization.tree import canonical_labels, first_members

NEIGHBOURS = 5  # nearest slices that set the width of the Gaussian kernel
KEPT = 12  # number of eigenpairs
DROPPED = 1e-8  # affinities up to this value count as 0
DENSE = 64  # smaller matrices are diagonalised fully; of larger ones only the kept eigenpairs are computed


def cosine_affinity(array: ArrayInput, axis: int) -> Floats:
    """Return the [n, n] cosine similarities of the slices of `axis`, with negative values set to 0.

    Zeros in the array are data like any other number. Slices of zeros have affinity 1 with each other and 0 with the
    rest.

    >>> cosine_affinity(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), axis=0)
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    products, _, twin = _compared(checked(array), axis, centred=False)
    norms = np.sqrt(np.diag(products))
    zero = norms == 0
    norms[zero] = 1.0
    cosines = np.maximum(products / np.outer(norms, norms), 0.0)
    cosines[np.ix_(zero, zero)] = 1.0
    cosines[twin[:, None] == twin] = 1.0  # rounding may have made it a little less
    return np.asarray(cosines)


def gaussian_affinity(array: ArrayInput, axis: int) -> Floats:
    """Return the [n, n] Gaussian kernel exp(−d_ij² / (σ_i σ_j)) of the slices of `axis`.

    d is the Euclidean distance, and σ_i the median distance of slice i to its 5 nearest others. A σ of 0 is replaced by
    the smallest positive one. If all slices are equal, the affinity is all ones.

    >>> gaussian_affinity(np.array([[0.0], [1.0], [3.0]]), axis=0).round(2)
    array([[1.  , 0.72, 0.17],
           [0.72, 1.  , 0.34],
           [0.17, 0.34, 1.  ]])
    """
    _, squares, _ = _compared(checked(array), axis, centred=True)
    n = len(squares)
    if n == 1:
        return np.ones((1, 1))
    others = np.sort(np.where(np.eye(n, dtype=bool), np.inf, squares), axis=1)[:, : min(NEIGHBOURS, n - 1)]
    sigma = np.median(np.sqrt(others), axis=1)
    if not (sigma > 0).any():
        return np.ones((n, n))
    sigma[sigma == 0] = sigma[sigma > 0].min()
    return np.asarray(np.exp(-squares / np.outer(sigma, sigma)))


def affinity_from_distance(distance: ArrayInput, epsilon: float = 1.0) -> Floats:
    """Return the affinity exp(−d / (ε · median(d))) of a distance matrix [n, n].

    The median is over all entries. If it is 0, the median of the positive entries is used; if there are none, the
    affinity is all ones.

    >>> affinity_from_distance([[0, 1, 4], [1, 0, 4], [4, 4, 0]]).round(2)
    array([[1.  , 0.37, 0.02],
           [0.37, 1.  , 0.02],
           [0.02, 0.02, 1.  ]])
    """
    distances = checked_square(distance, "distance")
    if not epsilon > 0:
        raise InputError(f"epsilon: expected a positive number, got {epsilon}")
    median = np.median(distances)
    if median == 0:
        if not (distances > 0).any():
            return np.ones_like(distances)
        median = np.median(distances[distances > 0])
    return np.asarray(np.exp(-distances / (epsilon * median)))


def _compared(array: AnyArray, axis: int, centred: bool) -> tuple[Floats, Floats, Ints]:
    """Return the products [n, n] of the slices of an axis, their squared distances, and twins [n], all in float64.

    The twin of a slice is the first one that is equal to it bit by bit. Twins get equal rows, which rounding could make
    different.

    centred: subtract the mean slice first
    """
    slices = slices_first(array, checked_axis(axis, array.ndim))
    n = slices.shape[0]
    flat = slices.reshape(n, -1)  # [n, k]

    def doubles(part: Any) -> Any:
        """Return numbers in float64, whose range holds the squares of all float32 numbers."""
        return part.double() if is_torch(part) else part.astype(np.float64, copy=False)

    def work(lo: int, hi: int, out: Any) -> None:
        part = doubles(flat[:, lo:hi])
        part = part - part.mean(0) if centred else part
        out += to_numpy(part @ part.T)

    with threads.single_threaded_blas():
        if is_torch(flat):
            work(0, flat.shape[1], products := np.zeros((n, n)))
        else:
            products = sum_in_groups(work, flat.shape[1], (n, n), n * n * flat.shape[1])
    products = (products + products.T) / 2
    norms = np.diag(products)
    sums = norms[:, None] + norms
    squares = np.maximum(sums - 2 * products, 0.0)
    np.fill_diagonal(squares, 0.0)
    # For close slices this difference of large numbers is mostly rounding, so their distance is computed directly.
    twin = np.arange(n)  # for each slice the first one equal to it
    for i, j in zip(*np.nonzero(np.triu(squares <= 1e-6 * sums, 1)), strict=True):
        if twin[i] == i and twin[j] == j:
            difference = doubles(flat[int(i)]) - doubles(flat[int(j)])
            squares[i, j] = squares[j, i] = float((difference * difference).sum())
            if squares[i, j] == 0:
                twin[j] = i
    both = np.ix_(twin, twin)
    return products[both], squares[both], twin


@dataclass(frozen=True)
class Diffusion:
    """Eigenpairs of the normalised affinity, computed separately for each connected component."""

    components: Ints  # [n] component of each element, numbered by smallest element
    values: Floats  # [n, k] eigenvalues of the element's component, largest |λ| first, padded with zeros
    vectors: Floats  # [n, k] ψ_k = v_k / v_0

    def coordinates(self, time: float = 1.0) -> Floats:
        """Return [n, k] coordinates |λ_k|^t ψ_k; their Euclidean distance is the diffusion distance at time t."""
        return np.asarray(np.abs(self.values) ** time * self.vectors)

    def distances(self, time: float, labels: Ints) -> Floats:
        """Return the [m, m] mean diffusion distances at time t between the folders given by `labels` [n].

        The mean is over all pairs of elements of the two folders. Between components the distance is infinite.
        """
        from scipy.spatial.distance import pdist, squareform

        sizes = np.bincount(labels)
        points = self.coordinates(time)
        order = np.argsort(labels, kind="stable")
        sums = squareform(pdist(points[order]))
        starts = np.searchsorted(labels[order], np.arange(len(sizes)))
        sums = np.add.reduceat(np.add.reduceat(sums, starts, axis=0), starts, axis=1)
        sums = (sums + sums.T) / 2
        sums /= np.outer(sizes, sizes)
        if self.components.any():  # more than one component
            component = self.components[first_members(labels)]
            sums[component[:, None] != component[None, :]] = np.inf
        return np.asarray(sums)


def normalised(affinity: Floats) -> Floats:
    """Return S = P / (s sᵀ) with P = K / (r rᵀ), for an affinity K [n, n].

    r are the row sums of K, s the square roots of the row sums of P. Entries of K up to 1e-8 count as 0.
    """
    kernel = np.where(affinity > DROPPED, affinity, 0.0)
    rows = kernel.sum(1)
    kernel /= np.outer(rows, rows)
    roots = np.sqrt(kernel.sum(1))
    kernel /= np.outer(roots, roots)
    return np.asarray((kernel + kernel.T) / 2)


def diffusion(affinity: Floats) -> Diffusion:
    """Return the diffusion on an affinity [n, n] that `checked_affinity` returned; components are independent."""
    n = len(affinity)
    count, components = _components(affinity > DROPPED)
    values, vectors = np.zeros((n, min(KEPT, n))), np.zeros((n, min(KEPT, n)))
    for component in range(count):
        members = np.flatnonzero(components == component)
        if len(members) == 1:  # its row may be all zeros, which cannot be normalised
            values[members, 0] = vectors[members, 0] = 1.0
            continue
        inside = affinity if len(members) == n else affinity[np.ix_(members, members)]
        eigenvalues, basis = _leading_eigenpairs(normalised(inside))
        values[members, : len(eigenvalues)] = eigenvalues
        vectors[np.ix_(members, np.arange(len(eigenvalues)))] = basis / basis[:, :1]
    return Diffusion(components, values, vectors)


def _components(connected: Bools) -> tuple[int, Ints]:
    """Return the number of connected components of a graph [n, n] and the component of each element [n]."""
    if connected.all():
        return 1, np.zeros(len(connected), np.int64)
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(connected, directed=False)
    return int(count), canonical_labels(labels.astype(np.int64))


def _leading_eigenpairs(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the KEPT eigenpairs of a symmetric matrix with the largest |λ|, largest first."""
    from scipy.linalg import LinAlgError, cholesky, eigh

    n = len(matrix)
    with threads.single_threaded_blas():
        if n >= DENSE:
            values, vectors = eigh(matrix, subset_by_index=(n - KEPT, n - 1), check_finite=False)
            try:
                # These are the largest λ. They are also the largest |λ| if matrix + λ_min I is positive definite, λ_min
                # being the smallest of them: then no negative eigenvalue exceeds λ_min in size.
                cholesky(matrix + values[0] * np.eye(n), check_finite=False)
                return values[::-1], vectors[:, ::-1]
            except LinAlgError:
                pass
        values, vectors = eigh(matrix, check_finite=False)
    leading = np.argsort(-np.abs(values), kind="stable")[:KEPT]
    return values[leading], vectors[:, leading]


def diffusion_map(affinity: ArrayInput, dimensions: int = 3) -> Floats:
    """Return the [n, dimensions] diffusion coordinates λ_k v_k / v_0, k = 1, 2, …, largest λ first.

    (λ_k, v_k) are the eigenpairs of D^-½ K D^-½ for the affinity K [n, n] with row sums D; there is no density
    normalisation. In each column the entry of largest size is positive. n elements give at most n − 1 columns.

    >>> position = np.array([0.0, 1.0, 10.0, 11.0, 30.0])
    >>> diffusion_map(np.exp(-abs(position[:, None] - position) / 5), dimensions=1)[:, 0].round(2)
    array([-0.4 , -0.39, -0.28, -0.27,  2.69])
    """
    from scipy.linalg import eigh

    if (dimensions := whole_number(dimensions, "dimensions", None)) < 1:
        raise InputError(f"diffusion_map: expected at least one dimension, got {dimensions}")
    kernel = checked_affinity(affinity)
    n = len(kernel)
    degrees = kernel.sum(1)
    if degrees.min() <= 0:
        raise InputError(f"diffusion_map: row {int(degrees.argmin())} of the affinity sums to 0")
    kept = min(dimensions, n - 1)
    if kept == 0:
        return np.zeros((n, 0))
    first = np.sqrt(degrees / degrees.sum())
    # v_0 = √D is known. Subtracting it moves its eigenvalue from 1 to −1, so the largest eigenvalues are the others.
    rest = kernel / np.sqrt(np.outer(degrees, degrees)) - 2 * np.outer(first, first)
    with threads.single_threaded_blas():
        values, vectors = eigh((rest + rest.T) / 2, subset_by_index=(n - kept, n - 1), check_finite=False)
    coordinates = values[::-1] * vectors[:, ::-1] / first[:, None]
    signs = np.sign(coordinates[np.abs(coordinates).argmax(0), np.arange(kept)])
    return np.asarray(coordinates * np.where(signs == 0, 1.0, signs))
