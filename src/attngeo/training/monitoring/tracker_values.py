"""A record as the flat names and numbers that experiment trackers show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from attngeo.errors import InputError
from attngeo.training.monitoring.records import FIGURES, LOGIT, Record

Detail = Literal["stacks", "layers", "heads"]
_QUARTILES = {"lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75}


def check_detail(detail: object) -> None:
    """Raise InputError unless `detail` is one of the names of Detail."""
    if detail not in get_args(Detail):
        raise InputError(f"detail is {detail!r}, expected 'stacks', 'layers' or 'heads'")


def tracker_values(row: Record, detail: Detail = "stacks") -> dict[str, float]:
    """Return the median and the quartiles of each figure over the layers of each stack; missing figures are left out.

    detail: "layers" adds each layer, "heads" each layer and each head

    >>> row = {"step": 0, "stack": ["encoder"] * 3, "layer": [0, 1, 2], "symmetry": [0.1, 0.2, 0.6]}
    >>> values = tracker_values(row)
    >>> values["attngeo/encoder/symmetry/median"], round(values["attngeo/encoder/symmetry/upper_quartile"], 3)
    (0.2, 0.4)
    >>> tracker_values(row, "layers")["attngeo/encoder/L2/symmetry"]
    0.6
    """
    values: dict[str, float] = {}
    for stack in dict.fromkeys(row["stack"]):
        for name in (*FIGURES, LOGIT):
            figures = [value for own, value in zip(row["stack"], row.get(name, ()), strict=False) if own == stack]
            known = sorted(value for value in figures if value is not None)
            if known:
                values |= {f"attngeo/{stack}/{name}/{key}": _quantile(known, q) for key, q in _QUARTILES.items()}
            if known and name == LOGIT:  # one layer is enough to make training unstable
                values[f"attngeo/{stack}/{name}/max"] = known[-1]
    return values if detail == "stacks" else values | layer_values(row, heads=detail == "heads")


def layer_values(row: Record, heads: bool = True) -> dict[str, float]:
    """Return each figure of each layer and, if `heads`, of each head: "attngeo/encoder/L3H7/symmetry" → number."""
    values: dict[str, float | None] = {}
    for index, (stack, layer) in enumerate(zip(row["stack"], row["layer"], strict=True)):
        for name in (*FIGURES, LOGIT):
            values[f"attngeo/{stack}/L{layer}/{name}"] = _at(row, name, index)
            of_heads = (_at(row, f"head_{name}", index) or ()) if heads else ()
            numbers = _at(row, "head", index) or range(len(of_heads))  # a pruned layer names its heads
            for head, value in zip(numbers, of_heads, strict=False):
                values[f"attngeo/{stack}/L{layer}H{head}/{name}"] = value
    return {name: value for name, value in values.items() if value is not None}


def _at(row: Mapping[str, Any], name: str, index: int) -> Any:
    return row[name][index] if name in row else None


def _quantile(ordered: list[float], q: float) -> float:
    """Return the quantile of ordered values, interpolated linearly as NumPy does."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
