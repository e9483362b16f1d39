"""Write query and key weights into all self-attention layers of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attngeo.live.parameters import AttentionParameters, LayerParameters
from attngeo.training.initialisation.result import Initialisation, InitialisedLayer
from attngeo.training.initialisation.scale import Scale, check_rescalable, name_with_scale, rescale_, rms, target_std


def write_layers(
    name: str,
    scale: Scale,
    model: AttentionParameters,
    write: Callable[[LayerParameters], None],
    *,
    rescaled: tuple[str, ...] = ("key",),
) -> Initialisation:
    """Multiply the weights of each layer to the std `scale`, then call `write`, which sets them from one another.

    rescaled: the weights that are multiplied, "key" or "key" and "query"

    All layers are checked before the first is written, so that an error leaves the model as it was.
    """
    done = []
    with torch.no_grad():
        for layer in model.layers:
            for side in rescaled:
                weight = getattr(layer, side)
                check_rescalable(weight, f"{layer.label}: its {side} weights", target_std(scale, layer.width))
        for layer in model.layers:
            before = rms(layer.key)
            for side in rescaled:
                rescale_(getattr(layer, side), target_std(scale, layer.width))
            write(layer)
            done.append(InitialisedLayer(layer.stack, layer.layer, layer.tensors, (before, rms(layer.key))))
    return Initialisation(name_with_scale(name, scale), tuple(done), model.cross)


def keys_for_queries(layer: LayerParameters) -> Tensor:
    """Return the keys as [*g, 1, r, d]: each is read by the m query heads [*g, m, r, d] that share it."""
    return layer.key.unsqueeze(-3)


def double(weight: Tensor) -> Tensor:
    """Return `weight` as a float64 tensor on the CPU, where random matrices are drawn."""
    return weight.detach().to("cpu", torch.float64)
