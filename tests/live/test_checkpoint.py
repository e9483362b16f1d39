"""A live model as a checkpoint: `read` keeps the contract of every checkpoint, `tensor` gives float64 tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.errors import SourceError
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.sources.checkpoint import ReadRequest
from tests.weights import tiny_models

NAME = "bert.encoder.layer.0.attention.self.query.weight"


def test_read_returns_a_float32_copy() -> None:
    model = tiny_models.bert()
    values = LiveCheckpoint(model).read(ReadRequest(NAME, ((0, 2), (8, 9))))
    assert isinstance(values, np.ndarray) and values.dtype == np.float32 and values.flags.c_contiguous
    weight = model.get_parameter(NAME).detach()
    np.testing.assert_array_equal(values, weight[[0, 1, 8]].numpy())
    values[:] = 0  # owned by the caller
    assert float(weight[0].abs().sum()) > 0


def test_read_refuses_weights_that_are_not_finite() -> None:
    model = tiny_models.bert()
    model.get_parameter(NAME).data[3, 4] = math.nan
    with pytest.raises(SourceError, match=f"BertForMaskedLM: tensor '{NAME}' contains NaN or infinity"):
        LiveCheckpoint(model).read(ReadRequest(NAME))


def test_tensor_returns_a_float64_copy_on_the_device_of_the_weight() -> None:
    model = tiny_models.bert().half()
    value = LiveCheckpoint(model).tensor(ReadRequest(NAME))
    assert value.dtype == torch.float64 and value.device == model.device
    assert torch.equal(value, model.get_parameter(NAME).detach().double())
    value.zero_()
    assert float(model.get_parameter(NAME).detach().abs().sum()) > 0


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_layers_are_the_same_as_arrays_and_as_tensors(family: str) -> None:
    checkpoint = LiveCheckpoint(tiny_models.FAMILIES[family]())
    layers = open_layers(checkpoint)
    for arrays, tensors in zip(layers, layers.read_with(checkpoint.tensor), strict=True):
        assert (arrays.stack, arrays.layer, arrays.cross) == (tensors.stack, tensors.layer, tensors.cross)
        for side in ("query", "key"):
            array, tensor = getattr(arrays, side), getattr(tensors, side)
            assert isinstance(array, np.ndarray) and tensor.dtype == torch.float64
            np.testing.assert_array_equal(array, tensor.numpy())
