"""From a loss back to β, and from β, x, q̂, k̂ to the gradients of the query and key weights.

With s = c·q̂ k̂ᵀ the products before soft-cap and bias, β = −∂L/∂s. The products reach the loss through nothing else,
so ∂L/∂q̂ = −c β k̂ and ∂L/∂k̂ = −c βᵀ q̂; that these agree with the model's own is checked on every run. What lies
between a projection and q̂ (rotation, norm, a factor) is undone by its transposed Jacobian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch

from attngeo.dynamics.gradients.projections import Place
from attngeo.dynamics.gradients.recorder import Use
from attngeo.dynamics.gradients.result import LayerTerms, WeightTerms
from attngeo.errors import InputError
from attngeo.live.parameters import views

# Largest difference from the model's own gradient, against the sum of moduli of what is added up.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_NARROW = 5e-2
_ROUNDED = 1e-6  # norms of queries and keys round to float32 in any model, and last digits decide which way
_CONSTANT = 1e-3  # a ratio of norms that varies less is one factor


@dataclass(frozen=True, eq=False)
class _Pulled:
    """One use with its gradients; all in float32 or float64."""

    x: torch.Tensor  # [B, N, d]
    beta: torch.Tensor  # [B, H, N, N]
    query: torch.Tensor  # [B, H, N, r]
    key: torch.Tensor  # [B, G, N, r]
    scale: float
    gradients: tuple[torch.Tensor, ...]  # of the tensors of queries and keys, as stored
    missing: str


def layer_terms(loss: Any, uses: Sequence[Use], parameters: Mapping[str, Any], kind: str) -> list[LayerTerms]:
    """The terms of every layer heard, summed over its uses; leaves every `.grad` alone."""
    device = uses[0].query.device.type
    narrow = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False):  # the model ran in it; the sums are ours and keep their digits
        return _layer_terms(loss, uses, parameters, kind, narrow)


def _layer_terms(
    loss: Any, uses: Sequence[Use], parameters: Mapping[str, Any], kind: str, narrow: bool
) -> list[LayerTerms]:
    wanted = [[use.leaf, use.query, use.key, *use.made.values()] for use in uses]
    found = iter(torch.autograd.grad(loss, [*chain(*wanted)], retain_graph=True, allow_unused=True))
    grouped: dict[Any, tuple[Place, list[_Pulled]]] = {}
    for use, tensors in zip(uses, wanted, strict=True):
        leaf, *own = islice(found, len(tensors))
        if leaf is None and own[0] is not None:
            raise InputError(f"{kind}: {use.path} takes no mask, so its logits cannot be moved to see what follows")
        exact = [torch.zeros_like(one) if g is None else g for one, g in zip(tensors, [leaf, *own], strict=True)]
        leaf, own_query, own_key, *rest = exact
        tolerance = _NARROW if narrow else _TOLERANCE.get(use.query.dtype, _NARROW)
        part = _pull(use, leaf, own_query, own_key, dict(zip(use.made, rest, strict=True)), kind, tolerance)
        grouped.setdefault(use.place.weights, (use.place, []))[1].append(part)
    several = len({place.stack for place, _ in grouped.values()}) > 1
    return [_joined(place, parts, parameters, several) for place, parts in grouped.values()]


def _pull(
    use: Use, leaf: Any, own_query: Any, own_key: Any, own_made: Mapping[str, Any], kind: str, tolerance: float
) -> _Pulled:
    query, key, c = _wide(use.query), _wide(use.key), use.scale
    beta = -_wide(leaf)  # [B, H, N, N]
    many = query.shape[1] // key.shape[1]  # query heads that share a key head
    keys = key.repeat_interleave(many, 1)  # [B, H, N, r]
    if use.softcap is not None:  # the logits are cap·tanh(s/cap)
        beta = beta * (1 - torch.tanh(c * (query @ keys.mT) / use.softcap) ** 2)
    by_query = -c * (beta @ keys)  # [B, H, N, r]
    by_key = -c * (beta.mT @ query).unflatten(1, (-1, many)).sum(2)  # [B, G, N, r]
    bounds = c * (beta.abs() @ keys.abs()).max(), c * many * (beta.mT.abs() @ query.abs()).max()
    for made, own, bound in ((by_query, own_query, bounds[0]), (by_key, own_key, bounds[1])):
        # β must explain all of it: then scale, soft-cap, bias and mask are what they seem.
        if not (error := (made - _wide(own)).abs().max()) <= tolerance * abs(bound):
            raise InputError(
                f"{kind}: {use.path} does more with its queries and keys than scaled products, soft-cap, bias and "
                f"mask: they give gradients that differ from its own by {float(error / bound):.1g}"
            )
    x = _wide(use.x)
    factors, gradients, missing = (1.0, 1.0), (), use.place.missing
    if not missing:
        factors = _factors(use, query, key)
        gradients, missing = _weights(use, x, by_query, by_key, own_made, tolerance)
    # Kept so that logits are scale·q̂ k̂ᵀ with q̂ and k̂ the projections themselves, turned or not.
    return _Pulled(
        x, beta, query / factors[0], key / factors[1], c * factors[0] * factors[1], gradients, missing
    )  # fmt: skip


def _weights(
    use: Use, x: Any, by_query: Any, by_key: Any, own: Mapping[str, Any], tolerance: float
) -> tuple[tuple[Any, ...], str]:
    """∂L/∂W as stored, for the tensors of queries and keys; value rows of a fused tensor are zero."""
    names = use.place.tensors
    absent = [name for name in names if name not in use.made]
    if absent:
        return (), f"{absent[0]}: was not used, the queries or keys come from elsewhere"
    nodes = [use.made[name] for name in names]
    along = [by_query.to(use.query.dtype), by_key.to(use.key.dtype)]
    back = torch.autograd.grad([use.query, use.key], nodes, along, retain_graph=True, allow_unused=True)
    if any(one is None for one in back):
        return (), f"{use.path}: the queries or keys do not come from {' and '.join(names)}"
    for made, model in zip(_cut(use, dict(zip(names, back, strict=True))), _cut(use, own), strict=True):
        if not (made - model).abs().max() <= max(tolerance, _ROUNDED) * made.abs().max():
            return (), f"{use.path}: its queries or keys act through other terms too (a position bias made of them)"
    tokens = x.flatten(0, 1)  # [B·N, d]
    gradients = []
    for one in back:
        rows = _wide(one).reshape(len(tokens), -1)  # [B·N, out]
        gradients.append(tokens.T @ rows if use.place.site.storage.transposed else rows.T @ tokens)
    return tuple(gradients), ""


def _factors(use: Use, query: Any, key: Any) -> tuple[float, float]:
    """What queries and keys were multiplied with between projection and product, where it is one number.

    OPT and ESM scale their queries there, so it belongs to c. Rotation leaves norms alone, but for a factor some put on
    both sides, which belongs to it; QK-norm has no one factor.
    """
    if any(name not in use.made for name in use.place.tensors):
        return 1.0, 1.0
    plain = _cut(use, use.made)
    loose = _CONSTANT if use.query.dtype in _TOLERANCE else _NARROW
    on_query, on_key = _factor(plain[0], query, loose), _factor(plain[1], key, loose)
    shared = abs(on_query / on_key - 1) < loose and on_query != query.shape[-1] ** -0.25
    return (1.0, 1.0) if shared else (on_query, on_key)


def _cut(use: Use, made: Mapping[str, Any]) -> list[Any]:
    """[H, r, B·N], [G, r, B·N]: projections cut as the weight is, tokens in place of its input axis."""
    stored = {}
    for name in use.place.tensors:
        flat = _wide(made[name]).flatten(0, -2)  # [B·N, out]
        stored[name] = flat.contiguous() if use.place.site.storage.transposed else flat.T.contiguous()
    return [one.flatten(0, -3) for one in views(use.place.site, stored)]


def _factor(plain: Any, used: Any, loose: float) -> float:
    before = plain.norm(dim=1)  # [H, B·N]
    after = used.movedim(1, 0).flatten(1, 2).norm(dim=-1)  # [H, B·N]
    if before.shape != after.shape:
        return 1.0
    ratio = (after / before)[before > 0]
    if not len(ratio):
        return 1.0
    middle = float(ratio.median())
    if not float((ratio / middle - 1).abs().max()) < loose:
        return 1.0
    for likely in (
        1.0,
        used.shape[-1] ** -0.5,
        used.shape[-1] ** -0.25,
    ):  # rotations computed in float32 must not cost the sum its digits
        if abs(middle / likely - 1) < loose:
            return float(likely)
    return middle


def _joined(place: Place, parts: Sequence[_Pulled], parameters: Mapping[str, Any], several: bool) -> LayerTerms:
    first = parts[0]
    if any(part.x.shape[1:] != first.x.shape[1:] for part in parts):
        raise InputError(f"{place.site.path}: used on sequences of different lengths in one run, one length expected")
    missing = next((part.missing for part in parts if part.missing), "")
    weights = None
    if not missing:
        summed = dict(zip(place.tensors, map(sum, zip(*(part.gradients for part in parts), strict=True)), strict=True))
        own = {name: _wide(parameters[name].detach()) for name in summed}
        # [*g, m, r, d], [*g, r, d] → [H, d, r], [G, d, r]
        cut = [array.flatten(0, -3).mT for group in (own, summed) for array in views(place.site, group)]
        weights = WeightTerms(*map(_array, cut))
    heads = first.beta.shape[1]
    prefix = f"{place.stack} " if several else ""
    x, beta, query, key = (
        _array(torch.cat([getattr(part, name) for part in parts])) for name in ("x", "beta", "query", "key")
    )
    labels = tuple(f"{prefix}L{place.layer}H{head}" for head in range(heads))
    return LayerTerms(place.stack, place.layer, labels, x, beta, query, key, first.scale, weights, missing)


def _wide(value: Any) -> Any:
    return value.detach() if value.dtype == torch.float64 else value.detach().float()


def _array(value: Any) -> Any:
    return value.cpu().contiguous().numpy()
