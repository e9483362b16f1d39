"""`calibrate`: run a model on calibration inputs once; plans by any criterion, and the refit, use the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.calibration.measure import LayerMeasurement, measure
from attngeo.applications.prune.calibration.objective import Objective, objective_of
from attngeo.applications.prune.calibration.rows import Batch, batched, read_rows, split_rows
from attngeo.applications.prune.calibration.statistics import Statistics
from attngeo.applications.prune.criteria.organized_heads import OrganizedHeads, organized_heads
from attngeo.applications.prune.fingerprint import fingerprint
from attngeo.applications.prune.removal.layers import prunable_layers
from attngeo.errors import InputError
from attngeo.live.load import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS_PER_ENTRY = 0.25  # tokens that the refit needs at least, per entry of the concatenated head outputs


@dataclass(frozen=True, eq=False)
class Calibration:
    """What one pass over calibration inputs found."""

    model: PreTrainedModel
    name: str
    objective: Objective
    measured: list[LayerMeasurement]
    statistics: Statistics
    rows: list[Batch]  # to fit with

    @cached_property
    def organized(self) -> list[OrganizedHeads]:
        """The heads of each stack, organised on a few rows that a second pass captures."""
        return organized_heads(self.model, [one.layer for one in self.measured], self.rows)


def calibrate(
    loaded: LoadedModel,
    inputs: Any,
    *,
    window: int | None = None,
    target: str | None = None,
    seed: int = 0,
    gradients: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Return what the layers of a model do on calibration inputs; options as in `prune_plan`.

    gradients: also differentiate the loss, as the criteria of gates need
    """
    model = loaded.model
    layers = prunable_layers(model)
    objective = objective_of(loaded)
    rows = read_rows(inputs, loaded, objective, window=window, target=target, seed=seed)
    fit, held_out = split_rows(rows)
    measured = measure(model, layers, fit, held_out, gradients=gradients, seed=seed, progress=progress)
    moments = {(one.layer.stack, one.layer.layer): one.moments for one in measured}
    statistics = Statistics(fingerprint(model, layers), moments, tuple(batched(held_out)))
    needed = max(round(_TOKENS_PER_ENTRY * len(one.weight)) for one in measured)
    if statistics.tokens < needed:
        raise InputError(
            f"calibration inputs: {statistics.tokens} tokens to fit with, the refit needs at least {needed} "
            f"(about {needed * 4 // 3} in all, because a quarter is held out)"
        )
    return Calibration(model, loaded.name, objective, measured, statistics, fit)
