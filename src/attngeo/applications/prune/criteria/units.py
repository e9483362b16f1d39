"""Units of removal: whole groups, which are key heads with all query heads that read them, or single query heads.

A pruned model has groups of equal size, so that attention kernels for grouped queries still run: one step of removal
takes one group, or one query head of every group of a layer.
"""

from __future__ import annotations

from attngeo.applications.prune.removal.layers import PrunableLayer

UNITS = ("query", "group")


def layer_units(layer: PrunableLayer, unit: str) -> list[tuple[int, ...]]:
    """Return the query heads (their positions in the layer) that each unit, one of UNITS, consists of."""
    if unit == "query":
        return [(head,) for head in range(layer.heads.queries)]
    m = layer.heads.group
    return [tuple(range(group * m, (group + 1) * m)) for group in range(layer.heads.keys)]


def unit_places(layer: PrunableLayer, unit: str) -> list[int]:
    """Return the place of each unit: from every place of a layer equally many units are removed."""
    heads = layer.heads
    return [head // heads.group for head in range(heads.queries)] if split_groups(layer, unit) else [0] * heads.keys


def split_groups(layer: PrunableLayer, unit: str) -> bool:
    """Return whether query heads are removed from groups of several, so that all key heads stay."""
    return unit == "query" and layer.heads.group > 1
