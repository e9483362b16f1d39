"""Quantised coefficients as bytes: four streams, one after the other, compressed with gzip and written in base64.

gaps     distance of each coefficient's position from the one before it in the same head column (the first: from
         −1) minus 1, in 7-bit groups, lowest first, the eighth bit set on all but the last
low      lower byte of each |level|
high     upper byte of each |level|
signs    one bit per coefficient, highest bit first, set where it is negative
"""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Ints
from attngeo.organization.quantised import QuantisedExpansion


def packed_coefficients(kept: QuantisedExpansion) -> dict[str, Any]:
    """Return the number of coefficients per head column, the length of the first stream, and all streams."""
    previous = np.append(-1, kept.position[:-1])  # [n]
    previous[np.flatnonzero(np.diff(kept.column, prepend=-1))] = -1  # the first of each column
    gaps = seven_bit_groups(kept.position - previous - 1)
    sizes = np.abs(kept.levels.astype(np.int32))
    streams = [gaps, sizes.astype(np.uint8), (sizes >> 8).astype(np.uint8), np.packbits(kept.levels < 0)]
    packed = gzip.compress(b"".join(stream.tobytes() for stream in streams), 6, mtime=0)
    return {
        "columns": np.bincount(kept.column, minlength=kept.trees[2].size).tolist(),
        "gapBytes": len(gaps),
        "packed": base64.b64encode(packed).decode("ascii"),
    }


def seven_bit_groups(numbers: Ints) -> NDArray[np.uint8]:
    """Return whole numbers below 2³⁵ in groups of 7 bits, lowest first; the eighth bit says that another group follows.

    >>> seven_bit_groups(np.array([5, 300])).tolist()
    [5, 172, 2]
    """
    groups = [(numbers >> shift) for shift in range(0, 35, 7)]
    used = np.stack([groups[0] >= 0, *(group > 0 for group in groups[1:])], 1)  # [n, 5]
    more = np.concatenate([used[:, 1:], np.zeros((len(numbers), 1), bool)], 1)
    every = (np.stack(groups, 1) & 0x7F) | (more << 7)
    return every[used].astype(np.uint8)
