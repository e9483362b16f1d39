"""The symmetric initialisation as published with the theory (arXiv 2502.10927), for comparison."""

from __future__ import annotations

import math
import re
from typing import Unpack

import torch
from torch import nn

from attngeo.live.parameters import AttentionParameters, LayerOptions, LayerParameters, attention_parameters
from attngeo.training.initialisation.result import Initialisation, InitialisedLayer
from attngeo.training.initialisation.rotations import Seed, generator
from attngeo.training.initialisation.scale import rms
from attngeo.training.initialisation.symmetric import symmetric_init_
from attngeo.training.initialisation.value_projection import value_tensor


def authors_init_(model: nn.Module, *, seed: Seed = 0, **options: Unpack[LayerOptions]) -> Initialisation:
    """Draw Q, K and V as `nn.Linear` does (uniform, std 1/√(3d), biases too), then set W_q ← W_k.

    The authors replace the attention module after the model was initialised, so that its values and biases change too.
    """
    draw = generator(seed, "authors")
    parameters = attention_parameters(model, **options)
    before = [rms(layer.key) for layer in parameters.layers]
    written = [_projection_tensors(parameters, layer) for layer in parameters.layers]  # before the first is written
    with torch.no_grad():
        for layer, names in zip(parameters.layers, written, strict=True):
            bound = 1 / math.sqrt(layer.width)  # uniform in ±bound has std bound/√3
            for name in names:
                weight = parameters.parameters[name]
                weight.copy_(torch.rand(weight.shape, generator=draw).mul_(2 * bound).sub_(bound))
    symmetric_init_(model, **options)
    layers = (
        InitialisedLayer(layer.stack, layer.layer, names, (std, rms(layer.key)))
        for layer, names, std in zip(parameters.layers, written, before, strict=True)
    )
    return Initialisation("the authors' recipe", tuple(layers), parameters.cross)


def _projection_tensors(model: AttentionParameters, layer: LayerParameters) -> tuple[str, ...]:
    """Return the names of the parameters that hold queries, keys and values of a layer: weights, then biases."""
    names = dict.fromkeys((*layer.tensors, value_tensor(model, layer)))
    biases = (re.sub(r"weight$", "bias", name) for name in names)
    return tuple(names) + tuple(name for name in biases if name in model.parameters and name not in names)
