"""Affinities between the slices of an axis, computed from the slices themselves or from a distance matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.arrays import AnyArray, ArrayInput, Floats, Ints, is_torch, to_numpy
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked, checked_axis
from attngeo.organization.geometry.partial_sums import group_count
from attngeo.organization.kernels.memory import slices_first

NEIGHBOURS = 5  # nearest slices that set the width of the Gaussian kernel


def cosine_affinity(array: ArrayInput, axis: int) -> Floats:
    """Return the [n, n] cosine similarities of the slices of `axis`, with negative values set to 0.

    Zeros in the array are data like any other number. Slices of zeros have affinity 1 with each other and 0 with the
    rest.

    >>> cosine_affinity(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), axis=0)
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    products, twin = _products(checked(array), axis)
    norms = np.sqrt(np.diag(products))
    zero = norms == 0
    norms[zero] = 1.0
    cosines = np.maximum(products / np.outer(norms, norms), 0.0)
    cosines[np.ix_(zero, zero)] = 1.0
    np.fill_diagonal(cosines, 1.0)
    return np.asarray(cosines[np.ix_(twin, twin)])


def gaussian_affinity(array: ArrayInput, axis: int) -> Floats:
    """Return the [n, n] Gaussian kernel exp(−d_ij² / (σ_i σ_j)) of the slices of `axis`.

    d is the Euclidean distance, and σ_i the median distance of slice i to its 5 nearest others. A σ of 0 is replaced by
    the smallest positive one. If all slices are equal, the affinity is all ones.

    >>> gaussian_affinity(np.array([[0.0], [1.0], [3.0]]), axis=0).round(2)
    array([[1.  , 0.72, 0.17],
           [0.72, 1.  , 0.34],
           [0.17, 0.34, 1.  ]])
    """
    values = checked(array)
    products, twin = _products(values, axis, centred=True)
    norms = np.diag(products)
    squares = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)
    np.fill_diagonal(squares, 0.0)
    # For close slices this difference of large numbers is mostly rounding, so their distance is computed directly.
    slices = slices_first(values, checked_axis(axis, values.ndim))
    close = np.triu(squares < 1e-6 * (norms[:, None] + norms[None, :]), 1)
    for i, j in zip(*np.nonzero(close & (twin[:, None] != twin[None, :])), strict=True):
        difference = _doubles(slices[int(i)]) - _doubles(slices[int(j)])
        squares[i, j] = squares[j, i] = float((difference * difference).sum())
    squares = squares[np.ix_(twin, twin)]
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
    distances: Floats = np.asarray(checked(distance, "distance", (2,)), np.float64)
    if distances.shape[0] != distances.shape[1]:
        raise InputError(f"distance: expected a square matrix, got shape {distances.shape}")
    if distances.min() < 0:
        raise InputError(f"distance: expected no negative entries, the smallest is {distances.min():.3g}")
    if not epsilon > 0:
        raise InputError(f"epsilon: expected a positive number, got {epsilon}")
    median = np.median(distances)
    if median == 0:
        if not (distances > 0).any():
            return np.ones_like(distances)
        median = np.median(distances[distances > 0])
    return np.asarray(np.exp(-distances / (epsilon * median)))


def _products(array: AnyArray, axis: int, centred: bool = False) -> tuple[Floats, Ints]:
    """Return the scalar products [n, n] of the slices in float64, and for each slice the first one equal to it [n].

    centred: subtract the mean slice first
    """
    slices = slices_first(array, checked_axis(axis, array.ndim))
    n = slices.shape[0]
    flat = slices.reshape(n, -1)  # [n, k]
    parts = min(group_count(n * n), flat.shape[1])
    shapes = (parts, n, n), (parts, n)
    products, squares = (flat.new_zeros(x).double() if is_torch(flat) else np.zeros(x) for x in shapes)

    def task(lo: int, hi: int) -> None:
        for group in range(lo, hi):
            span = slice(flat.shape[1] * group // parts, flat.shape[1] * (group + 1) // parts)
            part = _doubles(flat[:, span])  # [n, k/parts]
            if centred:
                part = part - part.mean(0)
            products[group] = part @ part.T
            squares[group] = (part * part).sum(1) if is_torch(part) else np.einsum("nk,nk->n", part, part)

    with threads.single_threaded_blas():
        task(0, parts) if is_torch(flat) else threads.spread(task, parts, parts, cost=n * n * flat.shape[1])
    total = to_numpy(products.sum(0))
    return (total + total.T) / 2, _twins(flat, to_numpy(squares.sum(0)))


def _doubles(array: AnyArray) -> Any:
    """Return `array` in float64, whose range holds the squares of all float32 numbers."""
    return array.double() if is_torch(array) else array.astype(np.float64, copy=False)


def _twins(flat: AnyArray, squares: Floats) -> Ints:
    """Return for each slice the first slice that is equal to it bit by bit, [n].

    Callers use it to give equal slices equal affinities, because their scalar products may differ by rounding. The sums
    of squares are taken in the same order for each slice, so only slices with equal sums have to be compared.
    """
    twin = np.arange(len(squares))
    by_square: dict[float, list[int]] = {}
    for i, square in enumerate(squares.tolist()):
        others = by_square.setdefault(square, [])
        for j in others:
            if bool((flat[i] == flat[j]).all()):
                twin[i] = j
                break
        else:
            others.append(i)
    return twin
