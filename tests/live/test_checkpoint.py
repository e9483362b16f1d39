"""A live model as a checkpoint: its weights as scoring reads them, and as float64 tensors on their device."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

import attngeo
from attngeo.errors import InputError, SourceError
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.sources.checkpoint import ReadRequest
from tests.weights import tiny_models

NAME = "bert.encoder.layer.0.attention.self.query.weight"


def test_what_is_read_is_a_copy_of_the_weights() -> None:
    model = tiny_models.bert()
    weight = model.get_parameter(NAME).detach()
    before = weight.clone()
    values = LiveCheckpoint(model).read(ReadRequest(NAME, ((0, 2), (8, 9))))
    assert values.dtype == np.float32 and values.flags.c_contiguous
    np.testing.assert_array_equal(values, weight[[0, 1, 8]].numpy())
    tensor = LiveCheckpoint(model.half()).tensor(ReadRequest(NAME))
    assert tensor.dtype == torch.float64 and torch.equal(tensor, model.get_parameter(NAME).detach().double())
    values[:] = 0
    tensor.zero_()
    assert torch.equal(model.get_parameter(NAME).detach(), before.half())


def test_weights_that_are_not_finite_are_named() -> None:
    model = tiny_models.bert()
    model.get_parameter(NAME).data[3, 4] = math.nan
    with pytest.raises(SourceError, match=f"BertForMaskedLM: tensor '{NAME}' contains NaN or infinity"):
        attngeo.compare(model, tiny_models.bert())


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


class FullyShardedDataParallel(torch.nn.Module):
    """Has the name of the wrapper of FSDP 1."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module


def test_fsdp_1_is_refused_with_what_to_use_instead() -> None:
    sharded = tiny_models.bert()
    sharded.bert.encoder.layer[1] = FullyShardedDataParallel(sharded.bert.encoder.layer[1])
    message = r"BertForMaskedLM: FullyShardedDataParallel \(FSDP 1\) flattens its weights; shard the model by FSDP 2"
    for call in (lambda: attngeo.Monitor()(0, sharded), lambda: attngeo.symmetric_init_(sharded)):
        with pytest.raises(InputError, match=message):
            call()
