"""Diffusion on an affinity: a random walk that forgets density, its coordinates and distances at time t."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked_affinity
from attngeo.organization.kernels import dispatch
from attngeo.organization.trees.partition import canonical, first_members

KEPT = 12  # eigenpairs
DROPPED = 1e-8  # affinities up to this are no connection
DENSE = 64  # from this size on only the eigenpairs kept are computed


@dataclass(frozen=True)
class Diffusion:
    """Eigenpairs of the normalised affinity, found in each connected component by itself."""

    components: Ints  # [n] numbered by smallest element
    values: Floats  # [n, k] eigenvalues of the element's component, largest |λ| first, zeros where it has fewer
    vectors: Floats  # [n, k] ψ_k = v_k / v_0

    def coordinates(self, time: float = 1.0) -> Floats:
        """[n, k]: |λ_k|^t ψ_k, whose Euclidean distance is the diffusion distance at time t."""
        return np.asarray(np.abs(self.values) ** time * self.vectors)

    def distances(self, time: float, labels: Ints) -> Floats:
        """[m, m] mean diffusion distances at time t between folders `labels` [n], infinite between components."""
        sizes = np.bincount(labels)
        points = self.coordinates(time)
        if jit := dispatch.numba_kernels():
            sums = np.zeros((len(sizes), len(sizes)))
            jit.distance_sums(points, labels, sums)
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
        if self.components.any():  # more than one
            component = self.components[first_members(labels)]
            sums[component[:, None] != component[None, :]] = np.inf
        return np.asarray(sums)


def normalised(affinity: Floats) -> Floats:
    """S = P/(s sᵀ) with P = K/(r rᵀ): r the row sums of K, s the square roots of the row sums of P."""
    kernel = np.where(affinity > DROPPED, affinity, 0.0)
    rows = kernel.sum(1)
    kernel /= np.outer(rows, rows)
    roots = np.sqrt(kernel.sum(1))
    kernel /= np.outer(roots, roots)
    return np.asarray((kernel + kernel.T) / 2)


def diffusion(affinity: Floats) -> Diffusion:
    """Diffuse on `affinity`, a checked one, component by component: none of them hears of the others."""
    n = len(affinity)
    count, components = _components(affinity > DROPPED)
    values, vectors = np.zeros((n, min(KEPT, n))), np.zeros((n, min(KEPT, n)))
    for component in range(count):
        members = np.flatnonzero(components == component)
        if len(members) == 1:  # alone, perhaps not even near itself
            values[members, 0] = vectors[members, 0] = 1.0
            continue
        whole = len(members) == n
        found, basis = _leading(normalised(affinity if whole else affinity[np.ix_(members, members)]))
        values[members, : len(found)] = found
        vectors[np.ix_(members, np.arange(len(found)))] = basis / basis[:, :1]
    return Diffusion(components, values, vectors)


def _components(near: NDArray[np.bool_]) -> tuple[int, Ints]:
    """Connected components, numbered by smallest element."""
    if near.all():
        return 1, np.zeros(len(near), np.int64)
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(near, directed=False)
    return int(count), canonical(labels.astype(np.int64))


def _leading(matrix: Floats) -> tuple[Floats, Floats]:
    """The eigenpairs of largest |λ|, in that order."""
    from scipy.linalg import LinAlgError, cholesky, eigh

    n = len(matrix)
    with threads.single_threaded_blas():
        if n >= DENSE:
            values, vectors = eigh(matrix, subset_by_index=(n - KEPT, n - 1), check_finite=False)
            try:
                # Positive definite when shifted by the least kept: no negative eigenvalue is larger than that.
                cholesky(matrix + values[0] * np.eye(n), check_finite=False)
                return values[::-1], vectors[:, ::-1]
            except LinAlgError:
                pass
        values, vectors = eigh(matrix, check_finite=False)
    leading = np.argsort(-np.abs(values), kind="stable")[:KEPT]
    return values[leading], vectors[:, leading]


def diffusion_map(affinity: Any, dimensions: int = 3) -> Floats:
    """[n, dimensions] coordinates λ_k v_k / v_0, k = 1, 2, … with the largest λ first, of D^-½ K D^-½.

    No density step here. D holds the row sums of K, so v_0 = √D is known beforehand and the other eigenvectors are
    found beside it. Signs: the entry of largest size in each column is positive. n elements have at most n − 1 columns.

    >>> place = np.array([0.0, 1.0, 10.0, 11.0, 30.0])
    >>> diffusion_map(np.exp(-abs(place[:, None] - place) / 5), dimensions=1)[:, 0].round(2)
    array([-0.4 , -0.39, -0.28, -0.27,  2.69])
    """
    from scipy.linalg import eigh

    if dimensions < 1:
        raise InputError(f"diffusion_map: expected at least one dimension, got {dimensions}")
    affinity = checked_affinity(affinity)
    n = len(affinity)
    degrees = affinity.sum(1)
    if degrees.min() <= 0:
        raise InputError(f"diffusion_map: element {int(degrees.argmin())} is near nothing, not even itself")
    kept = min(dimensions, n - 1)
    if kept == 0:
        return np.zeros((n, 0))
    first = np.sqrt(degrees / degrees.sum())
    # v_0 moved from eigenvalue 1 to −1, below all others that count.
    rest = affinity / np.sqrt(np.outer(degrees, degrees)) - 2 * np.outer(first, first)
    with threads.single_threaded_blas():
        values, vectors = eigh((rest + rest.T) / 2, subset_by_index=(n - kept, n - 1), check_finite=False)
    coordinates = values[::-1] * vectors[:, ::-1] / first[:, None]
    signs = np.sign(coordinates[np.abs(coordinates).argmax(0), np.arange(kept)])
    return np.asarray(coordinates * np.where(signs == 0, 1.0, signs))
