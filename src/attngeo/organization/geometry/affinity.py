"""Affinities: who is near whom along an axis, from the slices themselves or from a distance."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, is_torch, to_numpy
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked, checked_axis
from attngeo.organization.geometry.l1 import groups
from attngeo.organization.kernels.memory import slices_first

NEIGHBOURS = 5


def cosine_affinity(array: Any, axis: int) -> Floats:
    """[n, n] cosine similarity of the slices of `axis`, negatives set to 0; zeros are data like any other.

    >>> cosine_affinity(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), axis=0)
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    products, twin = _products(array, axis)
    norms = np.sqrt(np.diag(products))
    zero = norms == 0
    norms[zero] = 1.0
    cosines = np.maximum(products / np.outer(norms, norms), 0.0)
    cosines[np.ix_(zero, zero)] = 1.0  # slices of zeros are alike, and like nothing else
    np.fill_diagonal(cosines, 1.0)
    return np.asarray(cosines[np.ix_(twin, twin)])


def gaussian_affinity(array: Any, axis: int) -> Floats:
    """[n, n] kernel exp(−d²ᵢⱼ/(σᵢσⱼ)), σᵢ the median distance of slice i to its 5 nearest others.

    A zero σ is replaced by the smallest positive one; slices that are all alike get an affinity of ones.

    >>> gaussian_affinity(np.array([[0.0], [1.0], [3.0]]), axis=0).round(2)
    array([[1.  , 0.72, 0.17],
           [0.72, 1.  , 0.34],
           [0.17, 0.34, 1.  ]])
    """
    array = checked(array)
    products, twin = _products(array, axis, centred=True)
    norms = np.diag(products)
    squares = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)
    np.fill_diagonal(squares, 0.0)
    # The difference of large numbers is worth nothing for close slices: those are taken again, directly.
    slices = slices_first(array, checked_axis(axis, array.ndim))
    close = np.triu(squares < 1e-6 * (norms[:, None] + norms[None, :]), 1)
    for i, j in zip(*np.nonzero(close & (twin[:, None] != twin[None, :])), strict=True):
        difference = slices[int(i)] - slices[int(j)]
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


def affinity_from_distance(distance: Any, epsilon: float = 1.0) -> Floats:
    """exp(−d/(ε · median d)), the median over all entries; over the positive ones where it is 0, ones where none.

    >>> affinity_from_distance([[0, 1, 4], [1, 0, 4], [4, 4, 0]]).round(2)
    array([[1.  , 0.37, 0.02],
           [0.37, 1.  , 0.02],
           [0.02, 0.02, 1.  ]])
    """
    distance = np.asarray(checked(distance, "distance", (2,)), np.float64)
    if distance.shape[0] != distance.shape[1] or distance.min() < 0:
        raise InputError(f"distance: expected a square matrix without negative entries, got shape {distance.shape}")
    if not epsilon > 0:
        raise InputError(f"epsilon: expected a positive number, got {epsilon}")
    median = np.median(distance)
    if median == 0:
        if not (distance > 0).any():
            return np.ones_like(distance)
        median = np.median(distance[distance > 0])
    return np.asarray(np.exp(-distance / (epsilon * median)))


def _products(array: Any, axis: int, centred: bool = False) -> tuple[Floats, Ints]:
    """Scalar products of the slices in float64, and for each slice the first one equal to it."""
    array = checked(array)
    slices = slices_first(array, checked_axis(axis, array.ndim))
    n = slices.shape[0]
    flat = slices.reshape(n, -1)  # [n, k]
    parts = min(groups(n * n), flat.shape[1])
    shapes = (parts, n, n), (parts, n)
    products, squares = (flat.new_zeros(x).double() if is_torch(flat) else np.zeros(x) for x in shapes)

    def task(lo: int, hi: int) -> None:
        for group in range(lo, hi):
            part = flat[:, flat.shape[1] * group // parts : flat.shape[1] * (group + 1) // parts]  # [n, k/parts]
            part = part.double() if is_torch(part) else part.astype(np.float64, copy=False)
            if centred:
                part = part - part.mean(0)
            products[group] = part @ part.T
            squares[group] = (part * part).sum(1) if is_torch(part) else np.einsum("nk,nk->n", part, part)

    with threads.single_threaded_blas():
        task(0, parts) if is_torch(flat) else threads.spread(task, parts, parts, cost=n * n * flat.shape[1])
    total = to_numpy(products.sum(0))
    return (total + total.T) / 2, _twins(flat, to_numpy(squares.sum(0)))


def _twins(flat: Any, squares: Floats) -> Ints:
    """For each slice the first one equal to it bit by bit: the products of equal slices may differ in rounding.

    Sums of squares, taken row by row in the same order, are equal where slices are: only those are compared.
    """
    twin = np.arange(len(squares))
    seen: dict[float, list[int]] = {}
    for i, square in enumerate(squares.tolist()):
        others = seen.setdefault(square, [])
        for j in others:
            if bool((flat[i] == flat[j]).all()):
                twin[i] = j
                break
        else:
            others.append(i)
    return twin
