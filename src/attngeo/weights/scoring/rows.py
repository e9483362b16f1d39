"""Rows of a score table: one dict per layer or head, from column name to value."""

from __future__ import annotations

import math
from typing import Any

Row = dict[str, Any]


def null_if_nan(value: float) -> float | None:
    """Return `value`, or None for NaN: a table has null where a score does not exist.

    >>> null_if_nan(0.5), null_if_nan(float("nan"))
    (0.5, None)
    """
    return None if math.isnan(value) else value


def form_label(row: Row) -> str:
    """Return "L3H7" for the row of a head, "L3" for that of a layer.

    >>> form_label({"layer": 3, "head": 7}), form_label({"layer": 3})
    ('L3H7', 'L3')
    """
    head = row.get("head")
    return f"L{row['layer']}" if head is None else f"L{row['layer']}H{head}"
