"""From a loss back to β, and from β, x, q̂ and k̂ to the gradients of the query and key weights.

With s = c·q̂ k̂ᵀ the products before soft-cap and bias, β = −∂L/∂s. The queries and keys reach the loss only through
these products, so ∂L/∂q̂ = −c β k̂ and ∂L/∂k̂ = −c βᵀ q̂; each run checks that these agree with the model's own
gradients. From q̂ and k̂ the transposed Jacobian of whatever lies between (rotation, norm, a factor) leads back to the
projections and their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from attngeo.arrays import AnyFloats, to_numpy
from attngeo.errors import InputError
from attngeo.live.attention_hook import repeat_keys
from attngeo.training.gradients.head_terms import WeightTerms
from attngeo.training.gradients.projections import SelfAttentionLayer
from attngeo.training.gradients.recorder import AttentionCall
from attngeo.training.gradients.result import LayerTerms

# Largest allowed difference from the model's own gradient, relative to the sum of the absolute values that are added.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_NARROW_TOLERANCE = 5e-2  # for float16, bfloat16 and autocast
_NORM_TOLERANCE = 1e-6  # norms of queries and keys round to float32 in every model, whatever its precision
_CONSTANT_TOLERANCE = 1e-3  # a ratio of norms that varies less than this is one constant factor


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


def layer_terms(
    loss: Tensor, calls: Sequence[AttentionCall], parameters: Mapping[str, Tensor], model_type: str
) -> list[LayerTerms]:
    """Return the terms of each recorded layer, summed over its calls; no `.grad` is changed."""
    device = calls[0].query.device.type
    under_autocast = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False):  # only the model runs in autocast; these sums keep their precision
        gradients = _gradients_by_call(loss, calls)
        by_layer: dict[Any, tuple[SelfAttentionLayer, list[_CallGradients]]] = {}
        for call, (leaf, query, key, *projected) in zip(calls, gradients, strict=True):
            if leaf is None and query is not None:
                raise InputError(f"{model_type}: {call.path} ignores its attention mask, so β cannot be computed")
            tolerance = _NARROW_TOLERANCE if under_autocast else _TOLERANCE.get(call.query.dtype, _NARROW_TOLERANCE)
            part = _call_gradients(
                call,
                leaf=_or_zeros(leaf, call.logit_leaf),
                own_query=_or_zeros(query, call.query),
                own_key=_or_zeros(key, call.key),
                own_projected={
                    name: _or_zeros(gradient, output)
                    for (name, output), gradient in zip(call.projected.items(), projected, strict=True)
                },
                model_type=model_type,
                tolerance=tolerance,
            )
            by_layer.setdefault(call.layer.weights, (call.layer, []))[1].append(part)
        several_stacks = len({layer.stack for layer, _ in by_layer.values()}) > 1
        return [_summed_terms(layer, parts, parameters, several_stacks) for layer, parts in by_layer.values()]


def _gradients_by_call(loss: Tensor, calls: Sequence[AttentionCall]) -> list[list[Tensor | None]]:
    """Return, for each call, ∂L/∂ of its logit leaf, queries, keys and projected vectors; None where L ignores them."""
    nodes = [[call.logit_leaf, call.query, call.key, *call.projected.values()] for call in calls]
    gradients = iter(torch.autograd.grad(loss, [*chain(*nodes)], retain_graph=True, allow_unused=True))
    return [list(islice(gradients, len(tensors))) for tensors in nodes]


def _call_gradients(
    call: AttentionCall,
    *,
    leaf: Tensor,
    own_query: Tensor,
    own_key: Tensor,
    own_projected: Mapping[str, Tensor],
    model_type: str,
    tolerance: float,
) -> _CallGradients:
    """Return β and the weight gradients of one call; raise InputError if they disagree with the model's gradients.

    leaf:      [B, H, N, N], ∂L/∂ of the logits after the soft-cap
    own_query: [B, H, N, r], the model's own ∂L/∂q̂; own_key and own_projected likewise
    """
    query, key, c = _widened(call.query), _widened(call.key), call.scale
    beta = -_widened(leaf)  # [B, H, N, N]
    group = query.shape[1] // key.shape[1]  # query heads per key head
    keys = repeat_keys(key, query.shape[1])  # [B, H, N, r]
    if call.softcap is not None:  # the logits are cap·tanh(s/cap)
        beta = beta * (1 - torch.tanh(c * (query @ keys.mT) / call.softcap) ** 2)
    to_query = -c * (beta @ keys)  # [B, H, N, r], ∂L/∂q̂
    to_key = -c * (beta.mT @ query).unflatten(1, (-1, group)).sum(2)  # [B, G, N, r], ∂L/∂k̂
    bounds = c * (beta.abs() @ keys.abs()).max(), c * group * (beta.mT.abs() @ query.abs()).max()
    for from_beta, own, bound in ((to_query, own_query, bounds[0]), (to_key, own_key, bounds[1])):
        # If β explains the whole gradient, then scale, soft-cap, bias and mask are what they seem to be.
        if not (error := (from_beta - _widened(own)).abs().max()) <= tolerance * abs(bound):
            raise InputError(
                f"{model_type}: {call.path} does more with its queries and keys than scaled products, soft-cap, bias "
                f"and mask: the gradients that follow from β differ from the model's own by {float(error / bound):.1g}"
            )
    x = _widened(call.x)
    factors, weight_gradients, missing = (1.0, 1.0), (), call.layer.missing
    if not missing:
        factors = _constant_factors(call, query, key)
        weight_gradients, missing = _weight_gradients(call, x, to_query, to_key, own_projected, tolerance)
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
    names = call.layer.site.tensors
    absent = [name for name in names if name not in call.projected]
    if absent:
        return (), f"{absent[0]}: was not used, the queries or keys come from another tensor"
    nodes = [call.projected[name] for name in names]  # [B, N, out]
    vectors = [to_query.to(call.query.dtype), to_key.to(call.key.dtype)]
    pulled_back = torch.autograd.grad([call.query, call.key], nodes, vectors, retain_graph=True, allow_unused=True)
    if any(gradient is None for gradient in pulled_back):
        return (), f"{call.path}: the queries or keys do not come from {' and '.join(names)}"
    from_beta = _projected_heads(call, dict(zip(names, pulled_back, strict=True)))
    for heads, own in zip(from_beta, _projected_heads(call, own_projected), strict=True):
        if not (heads - own).abs().max() <= max(tolerance, _NORM_TOLERANCE) * heads.abs().max():
            return (), f"{call.path}: its queries or keys act through other terms too, such as a position bias"
    tokens = x.flatten(0, 1)  # [B·N, d]
    gradients = []
    for gradient in pulled_back:
        rows = _widened(gradient).reshape(len(tokens), -1)  # [B·N, out]
        gradients.append(tokens.T @ rows if call.layer.site.storage.transposed else rows.T @ tokens)
    return tuple(gradients), ""


def _constant_factors(call: AttentionCall, query: Tensor, key: Tensor) -> tuple[float, float]:
    """Return the constants by which queries and keys are multiplied between projection and product; 1 if there is none.

    OPT and ESM scale their queries, and that factor belongs to c. Rotation preserves norms; some models combine it with
    one factor on both sides, which belongs to the rotation. QK-norm has no constant factor.
    """
    if any(name not in call.projected for name in call.layer.site.tensors):
        return 1.0, 1.0
    projected_query, projected_key = _projected_heads(call, call.projected)
    tolerance = _CONSTANT_TOLERANCE if call.query.dtype in _TOLERANCE else _NARROW_TOLERANCE
    on_query = _constant_factor(projected_query, query, tolerance)
    on_key = _constant_factor(projected_key, key, tolerance)
    part_of_rotation = abs(on_query / on_key - 1) < tolerance and on_query != query.shape[-1] ** -0.25
    return (1.0, 1.0) if part_of_rotation else (on_query, on_key)


def _projected_heads(call: AttentionCall, projected: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the projected vectors [B, N, out] of both tensors by head: [H, B·N, r] and [G, B·N, r]."""
    stored = {}  # in the shape of the weight, with the tokens in place of its input axis
    for name in call.layer.site.tensors:
        flat = _widened(projected[name]).flatten(0, -2)  # [B·N, out]
        stored[name] = flat.contiguous() if call.layer.site.storage.transposed else flat.T.contiguous()
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
    first = parts[0]
    if any(part.x.shape[1:] != first.x.shape[1:] for part in parts):
        raise InputError(
            f"{layer.location.path}: called on sequences of different lengths in one run, expected one length"
        )
    if other := next((part.scale for part in parts if abs(part.scale / first.scale - 1) > _CONSTANT_TOLERANCE), None):
        raise InputError(
            f"{layer.location.path}: called with the scales {first.scale:.3g} and {other:.3g} in one run, expected one"
        )
    missing = next((part.missing for part in parts if part.missing), "")
    weights = None
    if not missing:
        names = layer.site.tensors
        by_tensor = zip(*(part.weight_gradients for part in parts), strict=True)
        gradients = dict(zip(names, map(sum, by_tensor), strict=True))
        values = {name: _widened(parameters[name]) for name in names}
        # query [H, d, r], key [G, d, r], then their gradients
        weights = WeightTerms(*map(_to_array, (*layer.factors(values), *layer.factors(gradients))))
    x, beta, query, key = (
        _to_array(torch.cat([getattr(part, name) for part in parts])) for name in ("x", "beta", "query", "key")
    )
    prefix = f"{layer.stack} " if several_stacks else ""
    labels = tuple(f"{prefix}L{layer.layer}H{head}" for head in range(first.beta.shape[1]))
    return LayerTerms(layer.stack, layer.layer, labels, x, beta, query, key, first.scale, weights, missing)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _widened(value: Tensor) -> Tensor:
    """Return `value` without its graph, in float64 if it is float64, otherwise in float32."""
    return value.detach() if value.dtype == torch.float64 else value.detach().float()


def _to_array(value: Tensor) -> AnyFloats:
    array: AnyFloats = to_numpy(value.contiguous())
    return array
