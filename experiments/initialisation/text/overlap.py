"""How much of a held-out text occurs in the training text, as the share of its n-grams of words."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from attngeo.training.data.corpus import documents


def overlap(train: Iterable[str], valid: Iterable[str], n: int = 12) -> float:
    """Return the share of the n-grams of `valid` that occur in `train`; n-grams stay within a document.

    >>> overlap(["a b c d"], ["x b c d", "e f g"], n=3)
    0.3333333333333333
    """
    known = np.unique(np.concatenate([_hashes(text, n) for text in train]))  # [distinct], uint64
    asked = np.concatenate([_hashes(text, n) for text in valid])  # [n-grams]
    return float(np.isin(asked, known).mean())


def overlap_of_files(train: Iterable[str], valid: Iterable[str], n: int = 12) -> float:
    """Return the overlap of two corpora, given as files."""
    return overlap(documents(list(train)), documents(list(valid)), n)


def _hashes(text: str, n: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each n-gram of words; two different n-grams rarely have the same."""
    words = np.array([zlib.crc32(word.encode()) for word in text.split()], dtype=np.uint64)
    if len(words) < n:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(len(words) - n + 1, dtype=np.uint64)
    for offset in range(n):  # a polynomial in an odd base, modulo 2⁶⁴
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + words[offset : len(words) - n + 1 + offset]
    return hashes
