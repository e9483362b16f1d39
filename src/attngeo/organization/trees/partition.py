"""Partitions of 0 … n−1 as integer labels, one per element."""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Ints


def canonical(labels: Ints) -> Ints:
    """The same partition with each folder named by the rank of its smallest element."""
    if labels.min() < 0 or labels.max() >= 4 * len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    first = first_members(labels)
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))  # labels that nobody has come last
    return rank[labels]


def first_members(labels: Ints) -> Ints:
    """The smallest element of each folder 0, 1, …; the number of elements where a folder is empty."""
    first = np.full(int(labels.max()) + 1, len(labels), np.int64)
    first[labels[::-1]] = np.arange(len(labels) - 1, -1, -1)  # of several writes the last one stays
    return first
