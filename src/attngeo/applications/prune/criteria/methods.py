"""The criteria by name: which costs each of them gives to the units of every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attngeo.applications.prune.calibration.measure import LayerMeasurement
from attngeo.applications.prune.criteria.downdate import ErrorCosts, RefitCosts, RefitMeasure
from attngeo.applications.prune.criteria.greedy import LayerCosts
from attngeo.applications.prune.criteria.organized_heads import OrganizedHeads, by_layer, entropy_scores, folder_scores
from attngeo.applications.prune.criteria.scores import magnitude, measured_scores, random_scores, unit_costs

METHODS = (
    "sensitivity",  # error after the refit, each direction weighted by how much the loss depends on it
    "unexplained",  # Fisher information of the head's gate × share of its output that the other heads cannot give back
    "refit",  # error after the refit, tokens weighted by the stream
    "error",  # error without the refit, cross-terms between the removed heads included
    "gradient",  # E|∂L/∂ξ| of the head's gate (Michel et al. 2019)
    "fisher",  # E(∂L/∂ξ)²
    "magnitude",  # ‖W_v W_o‖·‖W_q W_kᵀ‖
    "output",  # mean norm of the head's output
    "folders",  # one head per folder of the head tree stays
    "entropy",  # heads whose logits are least sparse in the Haar basis go first
    "random",
)
NEEDS_GRADIENTS = ("sensitivity", "unexplained", "gradient", "fisher")
_REFIT_MEASURES: dict[str, RefitMeasure] = {"sensitivity": "sensitivity", "unexplained": "share", "refit": "stream"}

Units = Sequence[Sequence[tuple[int, ...]]]  # per layer: the heads of each unit


def method_costs(
    method: str,
    measured: Sequence[LayerMeasurement],
    units: Units,
    organized: Callable[[], Sequence[OrganizedHeads]],
    *,
    kept: int,
    seed: int,
) -> list[LayerCosts]:
    """Return the costs of the units of each layer.

    organized: called by the methods that need the organised heads, which take a pass of their own
    kept:      how many heads of the model are to stay, for the method "folders"
    """
    layers = [one.layer for one in measured]
    pairs = list(zip(measured, units, strict=True))
    if method in _REFIT_MEASURES:
        return [RefitCosts(one, own, _REFIT_MEASURES[method]) for one, own in pairs]
    if method == "error":
        return [ErrorCosts(one, own) for one, own in pairs]
    if method == "magnitude":
        scores = [magnitude(layer) for layer in layers]
    elif method == "random":
        scores = random_scores(layers, seed)
    elif method in ("folders", "entropy"):
        total = sum(layer.heads.queries for layer in layers)
        scored = []
        for stack in organized():
            share = kept * len(stack.heads) // total
            scored.append((stack, folder_scores(stack, share) if method == "folders" else entropy_scores(stack)))
        scores = by_layer(layers, scored)
    else:
        scores = [measured_scores(one, method) for one in measured]
    return [unit_costs(own, units_of_layer) for own, units_of_layer in zip(scores, units, strict=True)]
