"""Choose the units to remove one after the other: always the cheapest one of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class UnitCost:
    """What the removal of one unit costs, and the figures that the cost was made of."""

    cost: float
    figures: dict[str, float]


class LayerCosts(Protocol):
    """The costs of the units of one layer, given the units that were removed before."""

    def costs(self) -> dict[int, UnitCost]:
        """Return the cost of each unit that is still there."""

    def remove(self, unit: int) -> None:
        """Note that `unit` is removed; the costs of the others may change."""


@dataclass(frozen=True)
class Choice:
    """One removal."""

    layer: int  # position in the list of layers
    unit: int
    cost: UnitCost


class FixedCosts:
    """Costs that do not depend on what was removed before."""

    def __init__(self, costs: Sequence[UnitCost]) -> None:
        self._left = dict(enumerate(costs))

    def costs(self) -> dict[int, UnitCost]:
        return self._left

    def remove(self, unit: int) -> None:
        del self._left[unit]


def choose(layers: Sequence[LayerCosts], count: int) -> list[Choice]:
    """Return up to `count` removals in order; each layer keeps one unit, so that there may be fewer.

    >>> one, two = (FixedCosts([UnitCost(c, {}) for c in costs]) for costs in ([1, 5], [2, 3, 4]))
    >>> [(choice.layer, choice.unit) for choice in choose([one, two], 10)]
    [(0, 0), (1, 0), (1, 1)]
    """
    current = [layer.costs() for layer in layers]
    chosen: list[Choice] = []
    while len(chosen) < count:
        open_layers = [index for index, costs in enumerate(current) if len(costs) > 1]
        if not open_layers:
            break
        _, index, unit = min((cost.cost, index, unit) for index in open_layers for unit, cost in current[index].items())
        chosen.append(Choice(index, unit, current[index][unit]))
        layers[index].remove(unit)
        current[index] = dict(layers[index].costs())
    return chosen
