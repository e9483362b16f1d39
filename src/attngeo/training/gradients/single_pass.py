"""One pass of a model forwards and backwards, written as the rank-1 terms it adds to the form of each head.

With s = c·q̂ k̂ᵀ the products before soft-cap and bias, β = −∂L/∂s. The queries and keys reach the loss only through
these products, so ∂L/∂q̂ = −c β k̂ and ∂L/∂k̂ = −c βᵀ q̂; each run checks that these agree with the model's own
gradients. From q̂ and k̂ the transposed Jacobian of whatever lies between (rotation, norm, a factor) leads back to the
projections and their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attngeo.arrays import AnyFloats, to_numpy
from attngeo.errors import InputError
from attngeo.live.attention_modules import attention_stacks, recorded_attention, repeat_keys, type_label
from attngeo.live.load import load_model, run_model
from attngeo.training.gradients.recorder import (
    AttentionCall,
    CallRecorder,
    Float64Softmax,
    SelfAttentionLayer,
    self_attention_layers,
)
from attngeo.training.gradients.terms import GradientTerms, LayerTerms, WeightTerms
from attngeo.weights.layout.layers import chosen_layers
from attngeo.weights.sources.numbers import quantised_error, quantised_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

# Largest allowed difference from the model's own gradient, relative to the sum of the absolute values that are added.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_NARROW_TOLERANCE = 5e-2  # for float16, bfloat16 and autocast
_NORM_TOLERANCE = 1e-6  # norms of queries and keys round to float32 in every model, whatever its precision
_CONSTANT_TOLERANCE = 1e-3  # a ratio of norms that varies less than this is one constant factor


def single_pass(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
) -> GradientTerms:
    """Return the terms of one backward pass; arguments as in `gradient_terms`."""
    requested = chosen_layers(layers)
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"batch: expected a mapping of names to tensors, as {type(model).__name__} takes them")
    loaded = load_model(model)
    model, label = loaded.model, type_label(loaded.model)
    _check_weights(model)
    stacks = attention_stacks(model)
    recorder = CallRecorder(label, self_attention_layers(model, stacks.values(), requested))
    # Fused attention takes its softmax in the precision of the logits, eager attention of many models in float32.
    softmax = nullcontext() if model.config._attn_implementation == "eager" else Float64Softmax()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with recorded_attention(model, stacks, recorder, parameter_gradients=True) as cleanup, softmax:
        recorder.register_hooks(cleanup)
        on_device = {
            name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in batch.items()
        }
        output = run_model(model, on_device)
        if not recorder.calls:
            raise InputError(f"{label}: this batch reaches none of the requested layers")
        for name in sorted({call.layer.location.stack for call in recorder.calls}):
            stacks[name].check_supported(label, requested)
        value = _scalar_loss(model, output, batch, loss)
        terms = _layer_terms(value, recorder.calls, parameters, label)
    return GradientTerms(float(value.detach()), tuple(terms), loaded.name)


def _check_weights(model: PreTrainedModel) -> None:
    """Raise InputError if the model's weights cannot have gradients in this process."""
    for problem, has_it in (
        ("are on the meta device and have no values yet", lambda weight: weight.is_meta),
        ("are sharded, expected all of them in this process", lambda weight: hasattr(weight, "full_tensor")),
    ):
        if any(map(has_it, model.parameters())):
            raise InputError(f"{type(model).__name__}: its weights {problem}")
    for path in quantised_modules(model):  # also outside of the attention: a module without gradients ends them
        raise quantised_error(model, path)


def _scalar_loss(
    model: PreTrainedModel, output: ModelOutput, batch: Mapping[str, Any], loss: Callable[[ModelOutput], Tensor] | None
) -> Tensor:
    """Return the loss as a finite scalar tensor with a gradient; raise InputError if there is none."""
    value = getattr(output, "loss", None) if loss is None else loss(output)
    if value is None:
        why = "no labels" if "labels" not in batch else f"{type(model).__name__} computes no loss from its labels"
        raise InputError(f"batch: {why}, so there is no loss; give labels, or a function of the output as loss=")
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"loss: {got}, expected one number that depends on the model's attention")
    if not math.isfinite(float(value.detach())):
        raise InputError(f"loss: {float(value.detach())} on this batch, expected a finite number")
    return value.reshape(())


# ---- from the loss to β, and from β, x, q̂ and k̂ to the gradients of the weights


@dataclass(frozen=True, eq=False)
class _CallGradients:
    """One attention call with its gradients, all in float32 or float64."""

    x: Tensor  # [B, N, d]
    beta: Tensor  # [B, H, N, N]
    query: Tensor  # [B, H, N, r]
    key: Tensor  # [B, G, N, r]
    scale: float
    weight_gradients: tuple[Tensor, ...]  # of the query and key tensors, in their stored shape
    missing: str  # why there are no weight gradients; empty if there are


def _layer_terms(
    loss: Tensor, calls: Sequence[AttentionCall], parameters: Mapping[str, Tensor], model_type: str
) -> list[LayerTerms]:
    """Return the terms of each recorded layer, summed over its calls; no `.grad` is changed."""
    device = calls[0].query.device.type
    narrow = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False):  # only the model runs in autocast; these sums keep their precision
        nodes = [[call.logit_leaf, call.query, call.key, *call.projected.values()] for call in calls]
        # A tensor that the loss ignores has the gradient 0.
        found = iter(torch.autograd.grad(loss, [*chain(*nodes)], retain_graph=True, materialize_grads=True))
        by_layer: dict[Any, tuple[SelfAttentionLayer, list[_CallGradients]]] = {}
        for call, own in zip(calls, nodes, strict=True):
            tolerance = _NARROW_TOLERANCE if narrow else _TOLERANCE.get(call.query.dtype, _NARROW_TOLERANCE)
            part = _call_gradients(call, [*islice(found, len(own))], model_type, tolerance)
            by_layer.setdefault(call.layer.weights, (call.layer, []))[1].append(part)
        several_stacks = len({layer.location.stack for layer, _ in by_layer.values()}) > 1
        return [_summed_terms(layer, parts, parameters, several_stacks) for layer, parts in by_layer.values()]


def _call_gradients(call: AttentionCall, own: Sequence[Tensor], model_type: str, tolerance: float) -> _CallGradients:
    """Return β and the weight gradients of one call; raise InputError if they disagree with the model's gradients.

    own: the model's own gradients of the logits after the soft-cap, of queries and keys, and of each projection
    """
    own_logits, own_query, own_key, *own_projected = own
    query, key, c = _widened(call.query), _widened(call.key), call.scale
    beta = -_widened(own_logits)  # [B, H, N, N]
    group = query.shape[1] // key.shape[1]  # query heads per key head
    keys = repeat_keys(key, query.shape[1])  # [B, H, N, r]
    if call.softcap is not None:  # the logits are cap·tanh(s/cap)
        beta = beta * (1 - torch.tanh(c * (query @ keys.mT) / call.softcap) ** 2)
    to_query = -c * (beta @ keys)  # [B, H, N, r], ∂L/∂q̂
    to_key = -c * (beta.mT @ query).unflatten(1, (-1, group)).sum(2)  # [B, G, N, r], ∂L/∂k̂
    bounds = c * (beta.abs() @ keys.abs()).max(), c * group * (beta.mT.abs() @ query.abs()).max()
    for from_beta, of_model, bound in ((to_query, own_query, bounds[0]), (to_key, own_key, bounds[1])):
        # If β explains the whole gradient, then scale, soft-cap, bias and mask are what they seem to be.
        if not (error := (from_beta - _widened(of_model)).abs().max()) <= tolerance * abs(bound):
            raise InputError(
                f"{model_type}: {call.path} does more with its queries and keys than scaled products, soft-cap, bias "
                f"and mask: the gradients that follow from β differ from the model's own by {float(error / bound):.1g}"
            )
    x = _widened(call.x)
    factors, weight_gradients, missing = (1.0, 1.0), (), call.missing
    if not missing:
        factors = _constant_factors(call, query, key)
        projected = dict(zip(call.projected, own_projected, strict=True))
        weight_gradients, missing = _weight_gradients(call, x, to_query, to_key, projected, tolerance)
    # Constant factors move from the queries and keys into the scale: q̂ and k̂ are the projections, rotated or not.
    query, key, scale = query / factors[0], key / factors[1], c * factors[0] * factors[1]
    return _CallGradients(x, beta, query, key, scale, weight_gradients, missing)


def _weight_gradients(
    call: AttentionCall,
    x: Tensor,
    to_query: Tensor,
    to_key: Tensor,
    own_projected: Mapping[str, Tensor],
    tolerance: float,
) -> tuple[tuple[Tensor, ...], str]:
    """Return ∂L/∂W of the query and key tensors in their stored shape, or why there are none.

    Rows of a fused tensor that hold values are 0.
    """
    names, transposed = call.layer.location.tensors, call.layer.location.storage.transposed
    nodes = [call.projected[name] for name in names]  # [B, N, out]
    vectors = [to_query.to(call.query.dtype), to_key.to(call.key.dtype)]
    pulled_back = torch.autograd.grad([call.query, call.key], nodes, vectors, retain_graph=True, materialize_grads=True)
    from_beta = _projected_heads(call, dict(zip(names, pulled_back, strict=True)))
    for heads, own in zip(from_beta, _projected_heads(call, own_projected), strict=True):
        if not (heads - own).abs().max() <= max(tolerance, _NORM_TOLERANCE) * heads.abs().max():
            return (), f"{call.path}: its queries or keys act through other terms too, such as a position bias"
    tokens = x.flatten(0, 1)  # [B·N, d]
    gradients = []
    for gradient in pulled_back:
        rows = _widened(gradient).reshape(len(tokens), -1)  # [B·N, out]
        gradients.append(tokens.T @ rows if transposed else rows.T @ tokens)
    return tuple(gradients), ""


def _constant_factors(call: AttentionCall, query: Tensor, key: Tensor) -> tuple[float, float]:
    """Return the constants by which queries and keys are multiplied between projection and product; 1 if there is none.

    OPT and ESM scale their queries, and that factor belongs to c. Rotation preserves norms; some models combine it with
    one factor on both sides, which belongs to the rotation. QK-norm has no constant factor.
    """
    projected_query, projected_key = _projected_heads(call, call.projected)
    tolerance = _CONSTANT_TOLERANCE if call.query.dtype in _TOLERANCE else _NARROW_TOLERANCE
    on_query = _constant_factor(projected_query, query, tolerance)
    on_key = _constant_factor(projected_key, key, tolerance)
    part_of_rotation = abs(on_query / on_key - 1) < tolerance and on_query != query.shape[-1] ** -0.25
    return (1.0, 1.0) if part_of_rotation else (on_query, on_key)


def _projected_heads(call: AttentionCall, projected: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the projected vectors [B, N, out] of both tensors by head: [H, B·N, r] and [G, B·N, r]."""
    layer = call.layer.location
    stored = {}  # in the shape of the weight, with the tokens in place of its input axis
    for name in layer.tensors:
        flat = _widened(projected[name]).flatten(0, -2)  # [B·N, out]
        stored[name] = (flat if layer.storage.transposed else flat.T).contiguous()
    return call.layer.factors(stored)


def _constant_factor(projected: Tensor, used: Tensor, tolerance: float) -> float:
    """Return the constant ratio ‖used‖/‖projected‖ of the vectors of all tokens; 1 if the ratio is not constant.

    projected: [H, B·N, r]
    used:      [B, H, N, r]
    """
    before = projected.norm(dim=-1)  # [H, B·N]
    after = used.movedim(1, 0).flatten(1, 2).norm(dim=-1)  # [H, B·N]
    if before.shape != after.shape:
        return 1.0
    ratio = (after / before)[before > 0]
    if not len(ratio):
        return 1.0
    median = float(ratio.median())
    if not float((ratio / median - 1).abs().max()) < tolerance:
        return 1.0
    # Rounded to the likely values, because rotations computed in float32 would cost the scale its last digits.
    for likely in (1.0, used.shape[-1] ** -0.5, used.shape[-1] ** -0.25):
        if abs(median / likely - 1) < tolerance:
            return float(likely)
    return median


def _summed_terms(
    layer: SelfAttentionLayer, parts: Sequence[_CallGradients], parameters: Mapping[str, Tensor], several_stacks: bool
) -> LayerTerms:
    """Return the terms of one layer: the calls are concatenated as sequences, their weight gradients summed."""
    first, where = parts[0], layer.location
    if any(part.x.shape[1:] != first.x.shape[1:] for part in parts):
        raise InputError(f"{where.path}: called on sequences of different lengths in one run, expected one length")
    if other := next((part.scale for part in parts if abs(part.scale / first.scale - 1) > _CONSTANT_TOLERANCE), None):
        raise InputError(
            f"{where.path}: called with the scales {first.scale:.3g} and {other:.3g} in one run, expected one"
        )
    missing = next((part.missing for part in parts if part.missing), "")
    weights = None
    if not missing:
        names = where.tensors
        by_tensor = zip(*(part.weight_gradients for part in parts), strict=True)
        gradients = dict(zip(names, map(sum, by_tensor), strict=True))
        values = {name: _widened(parameters[name]) for name in names}
        # query [H, d, r], key [G, d, r], then their gradients
        weights = WeightTerms(*map(_to_array, (*layer.factors(values), *layer.factors(gradients))))
    x, beta, query, key = (
        _to_array(torch.cat([getattr(part, name) for part in parts])) for name in ("x", "beta", "query", "key")
    )
    prefix = f"{where.stack} " if several_stacks else ""
    labels = tuple(f"{prefix}L{where.layer}H{head}" for head in range(first.beta.shape[1]))
    return LayerTerms(where.stack, where.layer, labels, x, beta, query, key, first.scale, weights, missing)


def _widened(value: Tensor) -> Tensor:
    """Return `value` without its graph, in float64 if it is float64, otherwise in float32."""
    return value.detach() if value.dtype == torch.float64 else value.detach().float()


def _to_array(value: Tensor) -> AnyFloats:
    array: AnyFloats = to_numpy(value.contiguous())
    return array
