"""`prune`: take the heads of a plan out of a model, and refit the output projections of the heads that stay."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.plan import PrunePlan
from attngeo.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attngeo.applications.prune.calibration.statistics import Statistics
    from attngeo.applications.prune.refit import Refit
    from attngeo.applications.prune.removal.layers import PrunableLayer
    from attngeo.live.load import Processor


def prune(
    model: PreTrainedModel,
    plan: PrunePlan,
    *,
    inputs: Any = None,
    refit: bool = True,
    target: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
) -> PreTrainedModel:
    """Return a new model without the heads of `plan`; the given one is unchanged.

    inputs   calibration inputs for the refit, as in `prune_plan`; by default the statistics saved with the plan
    refit    change the output projections so that the heads that stay give back what is lost. A refit that raises the
             loss on held-out calibration inputs is not applied; a warning says so, and so does
             `model.config.attngeo_pruned["refit"]`.

    The heads are gone: their rows of queries, keys, values and output projections, and key heads that nothing reads.
    `save_pretrained` writes a folder that `attngeo.load_pruned` loads.

    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> small = attngeo.prune(model, attngeo.PrunePlan.from_heads(model, ["L0H1", "L3H2"]), refit=False)
    >>> model.num_parameters() - small.num_parameters()  # 2 heads · 4 matrices of 128 × 32, and 3 biases of 32
    32960
    """
    from attngeo.applications.prune.removal.cut import keep_heads_
    from attngeo.applications.prune.removal.layers import prunable_layers
    from attngeo.applications.prune.removal.record import write_record

    layers = prunable_layers(model)
    check_fingerprint(model, plan, layers)
    kept = plan.kept_heads(layers)
    statistics = _statistics(model, plan, inputs, target, tokenizer, processor) if refit else None
    pruned = copy.deepcopy(model)
    cut_layers = prunable_layers(pruned)
    keep_heads_(cut_layers, kept)
    facts: dict[str, Any] = {"method": plan.method, "fingerprint": plan.fingerprint, "uniform": plan.uniform}
    if plan.uniform:
        _set_uniform(pruned, layers[0], kept)
    if statistics is not None:
        facts["refit"] = _refit(model, pruned, layers, cut_layers, kept, statistics)
    write_record(pruned.config, layers, kept, facts)
    return pruned


def check_fingerprint(model: PreTrainedModel, plan: PrunePlan, layers: Sequence[PrunableLayer]) -> None:
    """Raise InputError if `plan` was made for a model with other attention weights."""
    from attngeo.applications.prune.fingerprint import fingerprint

    if not isinstance(plan, PrunePlan):
        raise InputError(f"plan: a {type(plan).__name__}, expected a PrunePlan; PrunePlan.from_heads takes labels")
    found = fingerprint(model, layers)
    if found != plan.fingerprint:
        raise InputError(
            f"the plan was made for another model ({plan.model}): the attention weights of this one have the "
            f"fingerprint {found[:12]}, expected {plan.fingerprint[:12]}"
        )


def _statistics(
    model: PreTrainedModel,
    plan: PrunePlan,
    inputs: Any,
    target: str | None,
    tokenizer: PreTrainedTokenizerBase | None,
    processor: Processor | None,
) -> Statistics:
    """Return the statistics of `inputs`, or those saved with the plan."""
    if inputs is not None:
        from attngeo.applications.prune.calibrate import calibrate
        from attngeo.live.load import load_model

        loaded = load_model(model, tokenizer=tokenizer, processor=processor)
        return calibrate(loaded, inputs, target=target, gradients=False).statistics
    if plan.statistics is None:
        raise InputError("refit: no calibration; pass inputs=, a plan from prune_plan, or refit=False")
    if plan.statistics.fingerprint != plan.fingerprint:
        raise InputError("refit: the statistics beside the plan belong to another model; pass inputs=")
    return plan.statistics


def _refit(
    model: PreTrainedModel,
    pruned: PreTrainedModel,
    layers: Sequence[PrunableLayer],
    cut_layers: Sequence[PrunableLayer],
    kept: Mapping[tuple[str, int], Sequence[int]],
    statistics: Statistics,
) -> dict[str, Any]:
    """Refit the layers that lost heads, unless the loss on held-out inputs rises; return what was done."""
    from attngeo.applications.prune.calibration.losses import mean_loss, reference_outputs

    held_out = statistics.held_out
    reference = reference_outputs(model, held_out)
    changes = refits(layers, kept, statistics)
    before = mean_loss(pruned, held_out, reference)
    saved = {path: value.clone() for path, value in _output_parameters(cut_layers).items()}
    apply_refits_(cut_layers, changes)
    after = mean_loss(pruned, held_out, reference)
    applied = after <= before
    if not applied:
        for path, value in _output_parameters(cut_layers).items():
            value.data.copy_(saved[path])
        warnings.warn(
            f"the refit was not applied: it changes the loss on held-out calibration inputs from {before:.4f} to "
            f"{after:.4f}",
            UserWarning,
            stacklevel=3,
        )
    return {"applied": applied, "loss_without": before, "loss_with": after, "tokens": statistics.tokens}


def refits(
    layers: Sequence[PrunableLayer], kept: Mapping[tuple[str, int], Sequence[int]], statistics: Statistics
) -> dict[tuple[str, int], Refit]:
    """Return the refit of each layer of the full model that loses heads."""
    from attngeo.applications.prune.refit import refit_layer
    from attngeo.applications.prune.removal.cut import blocks

    found = {}
    for layer in layers:
        key = layer.stack, layer.layer
        if len(kept[key]) == layer.heads.queries:
            continue
        if key not in statistics.layers:
            raise InputError(f"refit: the statistics have no {layer.stack} layer {layer.layer}")
        weight = layer.output_weight.detach().double().cpu().numpy()
        found_size, size = len(statistics.layers[key].fit), len(weight) + (layer.output.bias is not None)
        if found_size != size or len(statistics.layers[key].held_out) != size:
            raise InputError(
                f"refit: the statistics of {layer.stack} layer {layer.layer} have {found_size} entries, expected {size}"
            )
        positions = [index for index, head in enumerate(layer.labels) if head.head in set(kept[key])]
        found[key] = refit_layer(statistics.layers[key], weight, blocks(positions, layer.heads.size))
    return found


def apply_refits_(cut_layers: Sequence[PrunableLayer], changes: Mapping[tuple[str, int], Refit]) -> None:
    """Add the changes to the output projections of layers that were cut already."""
    import torch

    with torch.no_grad():
        for layer in cut_layers:
            change = changes.get((layer.stack, layer.layer))
            if change is not None:
                weight = layer.output_weight
                total = weight.double() + torch.from_numpy(change.weight).to(weight.device)
                weight.copy_(total.to(weight.dtype))
                if change.bias is not None:
                    bias = layer.output.bias
                    bias.copy_((bias.double() + torch.from_numpy(change.bias).to(bias.device)).to(bias.dtype))


def _output_parameters(layers: Sequence[PrunableLayer]) -> dict[str, Any]:
    """Return the weights and biases of the output projections, by name."""
    return {
        f"{layer.output_path}.{leaf}": getattr(layer.output, leaf).detach()
        for layer in layers
        for leaf in ("weight", "bias")
        if getattr(layer.output, leaf) is not None
    }


def _set_uniform(pruned: PreTrainedModel, layer: PrunableLayer, kept: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Write the head counts of a uniform plan into the config; InputError where layers differ."""
    from attngeo.applications.prune.criteria.uniform import set_counts

    counts = {(len(heads), len({head // layer.heads.group for head in heads})) for heads in kept.values()}
    if len(counts) != 1:
        raise InputError("the plan is marked uniform, but its layers keep different numbers of heads")
    set_counts(pruned.config, *counts.pop(), layer.heads.size)
