"""Units of removal: single query heads, or key heads with all query heads that read them."""

from __future__ import annotations

from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.errors import InputError

UNITS = ("query", "group")


def layer_units(layer: PrunableLayer, unit: str) -> list[tuple[int, ...]]:
    """Return the query heads (their positions in the layer) that each unit consists of."""
    if unit == "query":
        return [(head,) for head in range(layer.heads.queries)]
    if unit != "group":
        raise InputError(f"unit {unit!r}: expected one of {', '.join(UNITS)}")
    return [tuple(head for head, key in enumerate(layer.key_of) if key == group) for group in range(layer.heads.keys)]
