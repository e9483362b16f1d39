"""Units of removal: single query heads, or key heads with all query heads that read them."""

from __future__ import annotations

from attngeo.applications.prune.removal.layers import PrunableLayer

UNITS = ("query", "group")


def layer_units(layer: PrunableLayer, unit: str) -> list[tuple[int, ...]]:
    """Return the query heads (their positions in the layer) that each unit, one of UNITS, consists of."""
    if unit == "query":
        return [(head,) for head in range(layer.heads.queries)]
    return [tuple(head for head, key in enumerate(layer.key_of) if key == group) for group in range(layer.heads.keys)]
