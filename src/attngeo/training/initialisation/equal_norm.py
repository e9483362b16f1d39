"""The symmetric and the skewed initialisation with forms of equal norm.

The skewed initialisation adds to the symmetric form a skew part that is as large, so its norm ‖M‖ is √2 times larger.
To tell the effect of the norm from that of the skew part, one of the two is scaled to the norm of the other.
"""

from __future__ import annotations

from typing import Unpack

from torch import nn

from attngeo.live.parameters import LayerOptions, LayerParameters, attention_parameters, require_heads
from attngeo.training.initialisation.controls import require_even_heads, skew_with
from attngeo.training.initialisation.result import Initialisation
from attngeo.training.initialisation.rotations import Seed, generator
from attngeo.training.initialisation.scale import Scale
from attngeo.training.initialisation.writer import keys_for_queries, write_layers

_FACTOR = 2.0**0.25  # of W_q and of W_k, so that M changes by √2


def large_symmetric_init_(
    model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]
) -> Initialisation:
    """Symmetric initialisation with ‖M‖ of the skewed one: W_q = W_k, both 2^¼ times larger than `scale` says."""

    def enlarge(layer: LayerParameters) -> None:
        layer.key.mul_(_FACTOR)
        layer.query.copy_(keys_for_queries(layer))  # [*g, m, r, d] ← [*g, 1, r, d]

    return write_layers("large symmetric", scale, attention_parameters(model, **options), enlarge)


def small_skewed_init_(
    model: nn.Module, *, scale: Scale = "unit", seed: Seed = 0, **options: Unpack[LayerOptions]
) -> Initialisation:
    """Skewed initialisation with ‖M‖ of the symmetric one: W_q and W_k are 2^¼ times smaller.

    With the same seed its forms are those of `skewed_init_` divided by √2.
    """
    parameters = attention_parameters(model, **options)
    require_heads(parameters.layers, "small skewed")
    require_even_heads(parameters, "small skewed")
    skew = skew_with(generator(seed, "skewed"))

    def reduce(layer: LayerParameters) -> None:
        skew(layer)
        layer.query.div_(_FACTOR)
        layer.key.div_(_FACTOR)

    return write_layers("small skewed", scale, parameters, reduce)
