"""`prune`: a model without the heads of a plan, refitted and saved in a form that `load_pruned` reads.

Removing the heads R of a layer loses z_R W_R of its output. The refit changes the rows W_S of the heads that stay so
that they give it back: it minimises Σ_t ‖z_t W_o − z_{t,S} W‖² + λ‖W − W_S‖² over W,

    W = W_S + (C_SS + λI)⁻¹ C_SR W_R

λ is chosen on held-out tokens. Where the projection has a bias, z ends with the constant 1, which always stays and is
not penalised; its row of W is added to the bias.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attngeo.applications.prune.plan import TOKENS, PrunePlan
from attngeo.arguments import file_path
from attngeo.arrays import Floats, Ints
from attngeo.errors import AttngeoError, InputError, SourceError, first_line
from attngeo.weights.layout.heads import CONFIG_KEY

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attngeo.applications.prune.measure import LayerMoments, Statistics
    from attngeo.applications.prune.removal import PrunableLayer
    from attngeo.live.load import Processor

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # λ, as a multiple of the mean diagonal of C
Kept = Mapping[tuple[str, int], Sequence[int]]  # (stack, layer) → numbers of the query heads that are kept


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
    from attngeo.applications.prune.removal import fingerprint, keep_heads_, prunable_layers

    layers = prunable_layers(model)
    found = fingerprint(model, layers)
    if found != plan.fingerprint:
        raise InputError(
            f"the plan was made for another model ({plan.model}): the attention weights of this one have the "
            f"fingerprint {found[:12]}, expected {plan.fingerprint[:12]}"
        )
    kept = plan.kept_heads(layers)
    statistics = plan.statistics if refit else None
    if refit and inputs is not None:
        from attngeo.applications.prune.measure import calibrate
        from attngeo.live.load import load_model

        loaded = load_model(model, tokenizer=tokenizer, processor=processor)
        statistics = calibrate(loaded, inputs, tokens=TOKENS, target=target).statistics
    if refit and statistics is None:
        raise InputError("refit: no calibration; pass inputs=, a plan from prune_plan, or refit=False")
    if statistics is not None and statistics.fingerprint != plan.fingerprint:
        raise InputError("refit: the statistics beside the plan belong to another model; pass inputs=")
    pruned = copy.deepcopy(model)
    cut_layers = prunable_layers(pruned)
    keep_heads_(cut_layers, kept)
    quantizer: Any = getattr(pruned, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_serializable():  # a GGUF file's: its weights were dequantised
        quantizer.remove_quantization_config(pruned)
    facts: dict[str, Any] = {"method": plan.method, "fingerprint": plan.fingerprint, "uniform": plan.uniform}
    if plan.uniform:
        config, heads = cast(Any, pruned.config), next(iter(kept.values()))
        config.num_attention_heads = len(heads)
        config.num_key_value_heads = len({head // layers[0].heads.group for head in heads})
        config.head_dim = layers[0].heads.size  # which is not width / heads any more
    if statistics is not None:
        facts["refit"] = _refit(model, pruned, layers, cut_layers, kept, statistics)
    stacks: dict[str, Any] = {}  # what `load_pruned` and `attngeo.score` read in config.json
    for layer in layers:
        sizes = {"heads": layer.heads.queries, "key_heads": layer.heads.keys, "head_size": layer.heads.size}
        stack = stacks.setdefault(layer.stack, {**sizes, "kept": {}})
        stack["kept"][str(layer.layer)] = list(kept[layer.stack, layer.layer])
    setattr(pruned.config, CONFIG_KEY, {**facts, "stacks": stacks})
    return pruned


def _refit(
    model: PreTrainedModel,
    pruned: PreTrainedModel,
    layers: Sequence[PrunableLayer],
    cut_layers: Sequence[PrunableLayer],
    kept: Kept,
    statistics: Statistics,
) -> dict[str, Any]:
    """Refit the layers that lost heads, unless the loss on held-out inputs rises; return what was done."""
    import torch

    from attngeo.applications.prune.removal import blocks
    from attngeo.applications.prune.rows import mean_loss, reference_outputs

    reference = reference_outputs(model, statistics.held_out)
    before = mean_loss(pruned, statistics.held_out, reference)
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for layer, cut in zip(layers, cut_layers, strict=True):
            key = layer.stack, layer.layer
            if len(kept[key]) == layer.heads.queries:
                continue
            change = refit_layer(statistics.layers[key], layer.weight, blocks(kept[key], layer.heads.size))
            weight, bias = cut.output_weight, cut.output.bias
            changes = [(weight, change[: len(weight)]), *([] if bias is None else [(bias, change[-1])])]
            for parameter, added in changes:
                saved.append((parameter, parameter.clone()))
                parameter.copy_((parameter.double() + torch.from_numpy(added).to(parameter.device)).to(parameter.dtype))
    after = mean_loss(pruned, statistics.held_out, reference)
    applied = after <= before
    if not applied:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
        warnings.warn(
            f"the refit was not applied: it changes the loss on held-out calibration inputs from {before:.4f} to "
            f"{after:.4f}",
            UserWarning,
            stacklevel=3,
        )
    return {"applied": applied, "loss_without": before, "loss_with": after, "tokens": statistics.tokens}


def refit_layer(moments: LayerMoments, weight: Floats, stays: Ints) -> Floats:
    """Return what the refit adds to the rows `stays` of W_o [H·r, d], [|S|, d], and then to the bias if there is one.

    It is 0 where no penalty makes the error on held-out tokens smaller.

    >>> from attngeo.applications.prune.measure import LayerMoments
    >>> z = np.random.default_rng(0).normal(size=(200, 2))
    >>> z = np.hstack([z, z @ [[1.0], [1.0]]])  # the third entry is the sum of the other two
    >>> moments = LayerMoments(z.T @ z, z.T @ z, 200)
    >>> refit_layer(moments, np.array([[0.0], [0.0], [3.0]]), np.array([0, 1])).round(1).tolist()
    [[3.0], [3.0]]
    """
    rows, width = weight.shape
    gone = np.setdiff1d(np.arange(rows), stays)
    inside = np.append(stays, np.arange(rows, len(moments.fit)))  # with the constant, the last entry
    lost = weight[gone]  # [|R|, d], W_R
    shared = moments.fit[np.ix_(inside, gone)] @ lost  # [|S| (+ 1), d], C_SR W_R
    entries = np.concatenate([inside, gone])
    held_out = moments.held_out[np.ix_(entries, entries)]

    def error(change: Floats) -> float:
        """Return the mean of ‖z_R W_R − z_S·change‖² over the held-out tokens."""
        difference = np.concatenate([-change, lost])  # [n, d]
        return float(np.sum(difference * (held_out @ difference)))

    best: Floats = np.zeros((len(inside), width))
    if not shared.any():  # as where all heads of the layer have zero outputs; C_SS may then be singular for any λ
        return best
    diagonal = np.zeros(len(inside))
    for penalty in PENALTIES:
        diagonal[: len(stays)] = penalty * np.trace(moments.fit[:rows, :rows]) / rows
        change = np.asarray(
            np.linalg.solve(moments.fit[np.ix_(inside, inside)] + np.diag(diagonal), shared), np.float64
        )
        best = min(best, change, key=error)
    return best


def load_pruned(folder: str | os.PathLike[str], **options: Any) -> PreTrainedModel:
    """Return the pruned model in `folder`, in evaluation mode.

    options: those of `from_pretrained`, such as dtype, device_map and attn_implementation

    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> plan = attngeo.PrunePlan.from_heads(model, ["L0H1", "L3H2"])
    >>> attngeo.prune(model, plan, refit=False).save_pretrained("pruned")
    >>> small = attngeo.load_pruned("pruned")
    >>> [layer.attention.self.num_attention_heads for layer in small.bert.encoder.layer]
    [3, 4, 4, 3]
    """
    from attngeo.live.load import check_torch, named_architecture, quiet_transformers

    check_torch()
    from transformers import AutoConfig

    path = file_path(folder)
    if not (path / "config.json").is_file():
        raise SourceError(f"{path}: no config.json; expected a folder that a pruned model was saved to")
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(path)
    except Exception as error:
        raise SourceError(f"{path}: its config.json cannot be read ({first_line(error)})") from error
    record = getattr(config, CONFIG_KEY, None)
    if record is None:
        raise InputError(f"{path}: config.json has no {CONFIG_KEY}; expected a folder that a pruned model was saved to")
    architecture = named_architecture(config)
    if architecture is None:
        name = next(iter(config.architectures or ()), "")
        raise InputError(f"{path}: config.json names the architecture {name!r}, expected a class of transformers")
    loaded_class = architecture if record.get("uniform") else _cutting_class(architecture, record)
    try:
        with quiet_transformers():
            model, info = loaded_class.from_pretrained(path, output_loading_info=True, **options)
    except AttngeoError:
        raise
    except Exception as error:
        raise SourceError(f"{path}: transformers cannot load it ({first_line(error)})") from error
    if info["missing_keys"]:
        raise SourceError(f"{path}: the tensor {min(info['missing_keys'])} is not in the folder")
    model.__class__ = architecture
    return model.eval()


def _cutting_class(architecture: Any, record: dict[str, Any]) -> Any:
    """Return a class like `architecture` whose new models have only the heads of `record`, before they are loaded."""
    from attngeo.applications.prune.removal import keep_heads_, prunable_layers

    def build(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        delattr(config, CONFIG_KEY)  # the model that is built first has all heads
        architecture.__init__(self, config, *arguments, **options)
        stacks = record["stacks"].items()
        kept = {(stack, int(layer)): heads for stack, about in stacks for layer, heads in about["kept"].items()}
        keep_heads_(prunable_layers(self), kept)
        setattr(self.config, CONFIG_KEY, record)

    return type(architecture.__name__, (architecture,), {"__init__": build, "__module__": architecture.__module__})
