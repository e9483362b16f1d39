"""Starts of others, for comparison: the authors' recipe (arXiv 2502.10927) and a variant of mimetic initialisation."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from attngeo.dynamics.initialisation.symmetric import Seed, Start, StartedLayer, generator, rms, symmetric_init_
from attngeo.errors import LayoutError
from attngeo.live.parameters import Live, Projection, live, need_heads, rows

# How the value projection is called where the key projection is called so.
_VALUES = {"key": "value", "k": "v", "k_proj": "v_proj", "k_lin": "v_lin", "linear_k": "linear_v", "Wk": "Wv",
           "wk": "wv", "key_proj": "value_proj", "project_k": "project_v", "to_k": "to_v"}  # fmt: skip
# Where the output projection lies, seen from the path of the layer's queries and keys.
_OUTPUTS = ("o_proj", "out_proj", "o", "out_lin", "c_proj", "dense", "Wo", "wo", "linear_out", "to_out.0", "proj")


def authors_init_(model: Any, *, seed: Seed = 0, **where: Any) -> Start:
    """The authors' recipe: Q, K and V drawn as `nn.Linear` draws them (uniform, std 1/√(3d), biases too), W_q ← W_k.

    Their symmetric module is swapped in after the model was initialised, so its values and biases change with it.
    """
    draw = generator(seed)
    found = live(model, **where)
    before = [rms(one.key) for one in found.projections]
    written = [_stored(found, one) for one in found.projections]  # all are found before the first is written
    with torch.no_grad():
        for one, names in zip(found.projections, written, strict=True):
            bound = 1 / math.sqrt(one.width)  # uniform in ±bound has std bound/√3
            for name in names:
                weight = found.parameters[name]
                weight.copy_(torch.rand(weight.shape, generator=draw).mul_(2 * bound).sub_(bound))
    symmetric_init_(model, **where)
    layers = (
        StartedLayer(one.stack, one.layer, names, (std, rms(one.key)))
        for one, names, std in zip(found.projections, written, before, strict=True)
    )
    return Start("the authors' recipe", tuple(layers), found.cross)


def mimetic_init_(
    model: Any, *, strength: float = 0.7, value: bool = False, value_strength: float = 0.4, seed: Seed = 0, **where: Any
) -> Start:
    """A variant of mimetic initialisation (Trockman & Kolter 2023, arXiv 2305.09828).

    For each head W_q W_kᵀ is the best rank-r part of αZ + βI with α = β = `strength` and Z_ij ~ N(0, 1/d), the square
    roots of the singular values on each side. With `value`, for each layer also W_v W_o = α₂Z₂ − β₂I.
    """
    draw = generator(seed)
    found = live(model, **where)
    need_heads(found.projections, "mimetic", grouped=False)
    # All are found before the first is written.
    values = [_value_and_output(found, one) for one in found.projections] if value else []
    done = []
    with torch.no_grad():
        for at, one in enumerate(found.projections):
            before, size, d = rms(one.key), one.key.shape[-2], one.width
            queries, keys = [], []
            for _ in range(one.key[..., 0, 0].numel()):
                left, right = _factors(strength, strength, d, size, draw)  # [d, r] each
                queries.append(left.T)
                keys.append(right.T)
            one.query.copy_(torch.stack(queries).view(one.query.shape))
            one.key.copy_(torch.stack(keys).view(one.key.shape))
            names = one.tensors
            if value:
                value_rows, output_rows, more = values[at]  # W_vᵀ, W_oᵀ, [d, d] both
                left, right = _factors(value_strength, -value_strength, d, d, draw)
                value_rows.copy_(left.T)
                output_rows.copy_(right)
                names = tuple(dict.fromkeys((*names, *more)))
            done.append(StartedLayer(one.stack, one.layer, names, (before, rms(one.key))))
    return Start(f"mimetic {strength:g}{' with values' if value else ''}", tuple(done), found.cross)


def _factors(alpha: float, beta: float, d: int, rank: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """[d, rank] twice: their product is the best approximation of αZ + βI."""
    noise = torch.randn(d, d, generator=draw, dtype=torch.float64) / math.sqrt(d)
    u, sigma, v = torch.linalg.svd(alpha * noise + beta * torch.eye(d, dtype=torch.float64))
    root = sigma[:rank].sqrt()
    return u[:, :rank] * root, v[:rank].T * root


def _stored(found: Live, one: Projection) -> tuple[str, ...]:
    """Names of the parameters that hold queries, keys and values of a layer, weights and biases."""
    names = list(one.tensors)
    if one.site.storage.kind in ("separate", "key-value"):
        names += [name for name in (_value_name(found, one),) if name not in names]
    biases = [re.sub(r"weight$", "bias", name) for name in names]
    return tuple(names + [name for name in biases if name in found.parameters and name not in names])


def _value_name(found: Live, one: Projection) -> str:
    if one.site.storage.kind == "key-value":
        return one.site.key
    leaf = one.site.key.removeprefix(one.site.path + ".").removesuffix(".weight")
    name = f"{one.site.path}.{_VALUES.get(leaf, '?')}.weight"
    if name not in found.parameters:
        raise LayoutError(f"{one.where}: no value projection found beside {one.site.key}")
    return name


def _value_and_output(found: Live, one: Projection) -> tuple[torch.Tensor, torch.Tensor, tuple[str, str]]:
    """Value and output projections as [out, in] views, and their names."""
    if one.site.storage.kind in ("heads", "codegen"):
        raise LayoutError(f"{one.where}: values are stored between queries and keys, the value part is not supported")
    if one.site.storage.kind == "blocks":
        name = one.site.query
        values = rows(one.site, name, found.parameters)[-one.width :]
    else:
        name = _value_name(found, one)
        values = rows(one.site, name, found.parameters)[-one.width :]
    above = one.site.path.rpartition(".")[0]
    near = [f"{one.site.path}.{leaf}.weight" for leaf in _OUTPUTS] + [f"{above}.output.dense.weight"]
    output = next((name for name in near if name in found.parameters), None)
    if output is None:
        raise LayoutError(f"{one.where}: no output projection found, the value part needs one")
    outputs = rows(one.site, output, found.parameters)
    if values.shape != (one.width, one.width) or outputs.shape != values.shape:
        raise LayoutError(f"{one.where}: values {list(values.shape)} and output {list(outputs.shape)}, "
                          f"[{one.width}, {one.width}] expected by the value part")  # fmt: skip
    return values, outputs, (name, output)
