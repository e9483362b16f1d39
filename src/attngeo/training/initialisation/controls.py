"""Controls for the symmetric initialisation: each shares some of its properties, to tell their effects apart.

As the symmetric initialisation they change the query and key weights of self-attention in place and nothing else. All
random numbers come from `seed`. The options are num_heads, stack, layers and unproven, as in `attngeo.score`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor, nn

from attngeo.errors import InputError
from attngeo.live.parameters import (
    AttentionParameters,
    LayerOptions,
    LayerParameters,
    attention_parameters,
    require_heads,
)
from attngeo.training.initialisation.result import Initialisation
from attngeo.training.initialisation.rotations import Seed, generator, random_rotations
from attngeo.training.initialisation.scale import Scale
from attngeo.training.initialisation.writer import double, keys_for_queries, write_layers

_BISECTIONS = 40  # of the interval of a, in `_rank_r_with_trace`


def independent_init_(model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]) -> Initialisation:
    """Control with the scale but no symmetry: the existing W_q and W_k, each multiplied to the std `scale`."""

    def keep(layer: LayerParameters) -> None:
        pass  # W_q and W_k are rescaled and nothing else

    parameters = attention_parameters(model, **options)
    return write_layers("independent", scale, parameters, keep, rescaled=("key", "query"))


def negative_init_(model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]) -> Initialisation:
    """Control with symmetry, where tokens avoid themselves: W_q = −W_k."""

    def negate(layer: LayerParameters) -> None:
        layer.query.copy_(-keys_for_queries(layer))  # [*g, m, r, d] ← [*g, 1, r, d]

    return write_layers("negative", scale, attention_parameters(model, **options), negate)


def indefinite_init_(model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]) -> Initialisation:
    """Control with symmetry, where tokens do not attend to themselves: W_q = W_k D, D diagonal, half +1 and half −1.

    The form W_k D W_kᵀ is symmetric (s = 1) and has as many negative eigenvalues as positive ones, so its trace is
    about 0. The signs of D alternate. Two dimensions that rotary position embedding pairs (i and i + r/2) have the same
    sign where 4 divides r, so that the form is symmetric at every offset.
    """

    def alternate(layer: LayerParameters) -> None:
        signs = layer.key.new_tensor([1.0, -1.0]).repeat(layer.key.shape[-2] // 2)  # [r]
        layer.query.copy_(signs[:, None] * keys_for_queries(layer))  # [*g, m, r, d] ← [*g, 1, r, d]

    parameters = _with_heads(model, "indefinite", options)
    require_even_heads(parameters, "indefinite")
    return write_layers("indefinite", scale, parameters, alternate)


def rotated_init_(
    model: nn.Module, *, scale: Scale = "unit", seed: Seed = 0, **options: Unpack[LayerOptions]
) -> Initialisation:
    """Control with the same norms but no symmetry: W_q = W_k S, S a random rotation of the head space per head."""
    draw = generator(seed, "rotated")

    def rotate(layer: LayerParameters) -> None:
        s = random_rotations(layer.query.shape[:-2], layer.query.shape[-2], draw)  # [*g, m, r, r]
        layer.query.copy_(s.transpose(-1, -2) @ double(keys_for_queries(layer)))  # (W_k S)ᵀ = Sᵀ W_kᵀ

    return write_layers("rotated", scale, _with_heads(model, "rotated", options), rotate)


def self_attending_init_(model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]) -> Initialisation:
    """Control where tokens attend to themselves, with less symmetry: the best rank-r approximation of W_q W_kᵀ + aI.

    W_q and W_k are the existing, independent ones at std `scale`. The number a gives M the trace that it has in the
    symmetric initialisation, so that the mean diagonal logit is the same. Much of the trace that rank r allows is
    symmetric, so the symmetry score falls to about 0.6 only; `skewed_init_` reaches 0.
    """

    def attend(layer: LayerParameters) -> None:
        queries, keys = (double(side.flatten(0, -3)) for side in (layer.query, layer.key))  # [H, r, d]
        factors = [_rank_r_with_trace(q.T, k.T) for q, k in zip(queries, keys, strict=True)]
        layer.query.copy_(torch.stack([w_q.T for w_q, _ in factors]).view(layer.query.shape))
        layer.key.copy_(torch.stack([w_k.T for _, w_k in factors]).view(layer.key.shape))

    parameters = _with_heads(model, "self-attending", options, shared_keys=False)
    return write_layers("self-attending", scale, parameters, attend, rescaled=("key", "query"))


def skewed_init_(
    model: nn.Module, *, scale: Scale = "unit", seed: Seed = 0, **options: Unpack[LayerOptions]
) -> Initialisation:
    """Control where tokens attend to themselves, with no symmetry: W_q = W_k (I + tS), S a random rotation, S² = −I.

    S is skew-symmetric, so x W_k S W_kᵀ xᵀ = 0 and the diagonal logit of every token is exactly that of the symmetric
    initialisation. The number t makes the skew part of M as large as its symmetric part: s = 0.
    """
    parameters = _with_heads(model, "skewed", options)
    require_even_heads(parameters, "skewed")
    return write_layers("skewed", scale, parameters, skew_with(generator(seed, "skewed")))


def skew_with(draw: torch.Generator) -> Callable[[LayerParameters], None]:
    """Return the function that sets W_q = W_k (I + tS) in a layer."""

    def skew(layer: LayerParameters) -> None:
        size = layer.key.shape[-2]
        turn = random_rotations(layer.query.shape[:-2], size, draw)  # [*g, m, r, r]
        plane = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=turn.dtype)
        s = turn.transpose(-1, -2) @ torch.block_diag(*[plane] * (size // 2)) @ turn  # [*g, m, r, r]
        key = double(keys_for_queries(layer)).transpose(-1, -2)  # [*g, 1, d, r]
        gram = key.transpose(-1, -2) @ key  # [*g, 1, r, r], G = W_kᵀ W_k
        # s(M) = (tr GG + t² tr SGSG) / (tr GG − t² tr SGSG)
        t = (_trace(gram @ gram) / -_trace(s @ gram @ s @ gram)).sqrt()  # [*g, m, 1, 1]
        t = t.nan_to_num(0.0)  # keys that are all zero stay so
        layer.query.copy_((key @ (torch.eye(size, dtype=s.dtype) + t * s)).transpose(-1, -2))

    return skew


def require_even_heads(parameters: AttentionParameters, name: str) -> None:
    """Raise InputError where a head size is odd."""
    for layer in parameters.layers:
        if layer.key.shape[-2] % 2:
            raise InputError(
                f"{layer.label}: head size {layer.key.shape[-2]} is odd; the {name} initialisation needs an even one"
            )


def _with_heads(model: nn.Module, name: str, options: LayerOptions, *, shared_keys: bool = True) -> AttentionParameters:
    """Return the attention parameters of `model`; LayoutError where the initialisation `name` cannot use its heads."""
    parameters = attention_parameters(model, **options)
    require_heads(parameters.layers, name, shared_keys=shared_keys)
    return parameters


def _rank_r_with_trace(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return W_q, W_k [d, r] with W_q W_kᵀ the best rank-r approximation of query keyᵀ + aI, and trace ‖key‖²."""
    size = key.shape[1]
    # Outside the span of both factors the sum is aI, and all singular values kept exceed a: 2r dimensions suffice.
    basis, _ = torch.linalg.qr(torch.cat([query, key], 1))  # [d, 2r]
    inner = (basis.T @ query) @ (basis.T @ key).T  # [2r, 2r]
    eye = torch.eye(len(inner), dtype=inner.dtype)

    def approximation(a: float) -> tuple[Tensor, Tensor]:
        u, sigma, v = torch.linalg.svd(inner + a * eye)
        root = sigma[:size].sqrt()
        return u[:, :size] * root, v[:size].T * root  # [2r, r] each

    trace = float(key.square().sum())
    low, high = 0.0, 2 * trace / size
    for _ in range(_BISECTIONS):
        a = (low + high) / 2
        left, right = approximation(a)
        low, high = (a, high) if float((left * right).sum()) < trace else (low, a)
    return basis @ left, basis @ right


def _trace(square: Tensor) -> Tensor:
    """[..., n, n] → [..., 1, 1]."""
    return square.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
