"""Partitions of the elements 0 … n − 1, stored as one integer label per element."""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Ints


def canonical_labels(labels: Ints) -> Ints:
    """Return the same partition with its folders numbered by their smallest element.

    >>> canonical_labels(np.array([7, 3, 7, 3, 9]))
    array([0, 1, 0, 1, 2])
    """
    if labels.min() < 0 or labels.max() >= 4 * len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    first = first_members(labels)
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))  # unused labels come last
    return rank[labels]


def first_members(labels: Ints) -> Ints:
    """Return the smallest element of each folder 0, 1, …, and n for a folder without elements.

    >>> first_members(np.array([0, 2, 0, 2]))
    array([0, 4, 1])
    """
    first = np.full(int(labels.max()) + 1, len(labels), np.int64)
    first[labels[::-1]] = np.arange(len(labels) - 1, -1, -1)  # of several writes to one place the last one counts
    return first
