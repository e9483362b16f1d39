"""Choose the units to remove one after the other: always the cheapest one of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
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


def choose(layers: Sequence[LayerCosts], places: Sequence[Sequence[int]], count: int) -> list[Choice]:
    """Return the removals of up to `count` steps in order: a step removes the cheapest unit of each place of one layer.

    places: of each layer, the place of each unit. All units of a layer are in one place, or each in that of its key
            head. Every place keeps one unit, so that there may be fewer steps.

    >>> one, two = (FixedCosts([UnitCost(c, {}) for c in costs]) for costs in ([1, 5], [2, 3, 4]))
    >>> [(choice.layer, choice.unit) for choice in choose([one, two], [[0, 0], [0, 0, 0]], 10)]
    [(0, 0), (1, 0), (1, 1)]
    """
    current = [next_step(index, *layer) for index, layer in enumerate(zip(layers, places, strict=True))]
    chosen: list[Choice] = []
    for _ in range(count):
        possible = [step for step in current if step]
        if not possible:
            break
        step = min(possible, key=lambda one: (sum(choice.cost.cost for choice in one) / len(one), one[0].layer))
        index = step[0].layer
        for choice in step:
            layers[index].remove(choice.unit)
        chosen += step
        current[index] = next_step(index, layers[index], places[index])
    return chosen


def next_step(index: int, layer: LayerCosts, places: Sequence[int]) -> list[Choice]:
    """Return the cheapest unit of each place of a layer, given the ones before; empty where one has none to lose."""
    left = layer.costs()
    members = {place: [unit for unit in left if places[unit] == place] for place in places}
    if any(len(units) < 2 for units in members.values()):
        return []
    trial = deepcopy(layer) if len(members) > 1 else layer
    step = []
    for units in members.values():
        costs = trial.costs()
        unit = min(units, key=lambda one: (costs[one].cost, one))
        step.append(Choice(index, unit, costs[unit]))
        if len(members) > 1:
            trial.remove(unit)
    return step
