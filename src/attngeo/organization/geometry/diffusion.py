"""Diffusion on an affinity: a random walk normalised for density, its distances at time t, and the diffusion map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import ArrayInput, Bools, Floats, Ints
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked_affinity
from attngeo.organization.kernels import dispatch
from attngeo.organization.trees.partition import canonical_labels, first_members

KEPT = 12  # number of eigenpairs
DROPPED = 1e-8  # affinities up to this value count as 0
DENSE = 64  # smaller matrices are diagonalised fully; of larger ones only the kept eigenpairs are computed


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
        sizes = np.bincount(labels)
        points = self.coordinates(time)
        if jit := dispatch.numba_kernels():
            sums = np.zeros((len(sizes), len(sizes)))
            jit.distances.add_euclidean_distances(points, labels, sums)
            sums += sums.T
        else:
            from scipy.spatial.distance import pdist, squareform

            order = np.argsort(labels, kind="stable")
            sums = squareform(pdist(points[order]))
            if len(sizes) < len(labels):
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
