"""A variant of mimetic initialisation (Trockman & Kolter 2023, arXiv 2305.09828), for comparison."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from attngeo.arguments import finite_number
from attngeo.live.parameters import LayerOptions, attention_parameters, require_heads
from attngeo.training.initialisation.result import Initialisation, InitialisedLayer
from attngeo.training.initialisation.rotations import Seed, generator
from attngeo.training.initialisation.scale import rms
from attngeo.training.initialisation.value_projection import value_and_output


def mimetic_init_(
    model: nn.Module,
    *,
    strength: float = 0.7,
    value: bool = False,
    value_strength: float = 0.4,
    seed: Seed = 0,
    **options: Unpack[LayerOptions],
) -> Initialisation:
    """Set W_q W_kᵀ of each head to the best rank-r approximation of αZ + βI, with Z_ij ~ N(0, 1/d).

    strength:       α = β; W_q and W_k each take the square roots of the singular values
    value:          also set W_v W_o = α₂Z₂ − β₂I in each layer
    value_strength: α₂ = β₂
    options:        num_heads, stack, layers, unproven, as in `attngeo.score`
    """
    draw = generator(seed, "mimetic")
    strength, value_strength = finite_number(strength, "strength"), finite_number(value_strength, "value_strength")
    parameters = attention_parameters(model, **options)
    require_heads(parameters.layers, "mimetic", shared_keys=False)
    # All projections are found before the first is written.
    projections = [value_and_output(parameters, layer) for layer in parameters.layers] if value else []
    done = []
    with torch.no_grad():
        for index, layer in enumerate(parameters.layers):
            before, size, d = rms(layer.key), layer.key.shape[-2], layer.width
            heads = layer.key[..., 0, 0].numel()
            factors = [_identity_like_factors(strength, strength, d, size, draw) for _ in range(heads)]  # [d, r] pairs
            layer.query.copy_(torch.stack([left.T for left, _ in factors]).view(layer.query.shape))
            layer.key.copy_(torch.stack([right.T for _, right in factors]).view(layer.key.shape))
            tensors = layer.tensors
            if value:
                values, outputs, names = projections[index]  # W_vᵀ and W_oᵀ, [d, d]
                left, right = _identity_like_factors(value_strength, -value_strength, d, d, draw)
                values.copy_(left.T)
                outputs.copy_(right)
                tensors = tuple(dict.fromkeys((*tensors, *names)))
            done.append(InitialisedLayer(layer.stack, layer.layer, tensors, (before, rms(layer.key))))
    return Initialisation(f"mimetic {strength:g}{' with values' if value else ''}", tuple(done), parameters.cross)


def _identity_like_factors(
    alpha: float, beta: float, d: int, rank: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two factors [d, rank] whose product is the best rank-`rank` approximation of αZ + βI, Z_ij ~ N(0, 1/d)."""
    noise = torch.randn(d, d, generator=draw, dtype=torch.float64) / math.sqrt(d)
    u, sigma, v = torch.linalg.svd(alpha * noise + beta * torch.eye(d, dtype=torch.float64))
    root = sigma[:rank].sqrt()
    return u[:, :rank] * root, v[:rank].T * root
