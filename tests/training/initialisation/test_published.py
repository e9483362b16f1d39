"""The published initialisations write what their papers say."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.mimetic import mimetic_init_
from attngeo.training.initialisation.rotations import generator
from tests.weights import tiny_models

pytestmark = pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")


def test_the_authors_draw_weights_and_biases_as_linear_layers_do() -> None:
    model = tiny_models.bert(hidden_size=128)
    attention = model.bert.encoder.layer[0].attention.self
    before = float(attention.key.weight.detach().square().mean().sqrt())
    done = authors_init_(model, seed=1)
    first = done.layers[0]
    assert (first.stack, first.layer) == ("encoder", 0) and len(done.layers) == len(model.bert.encoder.layer)
    assert len(first.tensors) == 6 and {name.rpartition(".")[2] for name in first.tensors} == {"weight", "bias"}
    assert first.std == pytest.approx((before, float(attention.key.weight.detach().square().mean().sqrt())), rel=1e-5)
    assert torch.equal(attention.query.weight, attention.key.weight)
    assert not torch.equal(attention.query.bias, attention.key.bias)
    for weight in (attention.key.weight, attention.value.weight):
        assert float(weight.detach().std()) == pytest.approx(1 / math.sqrt(3 * 128), rel=0.02)
        assert float(weight.detach().abs().max()) <= 1 / math.sqrt(128)
    assert float(attention.value.bias.detach().abs().max()) > 0


def test_mimetic_forms_are_the_best_approximation_of_their_target() -> None:
    model = tiny_models.bert(hidden_size=64, num_attention_heads=2)
    mimetic_init_(model, strength=0.7, value=True, seed=2)
    draw = generator(2, "mimetic")
    noise = torch.randn(64, 64, generator=draw, dtype=torch.float64) / 8
    u, sigma, v = torch.linalg.svd(0.7 * noise + 0.7 * torch.eye(64, dtype=torch.float64))
    best = u[:, :32] * sigma[:32] @ v[:32]
    attention = model.bert.encoder.layer[0].attention
    query, key = (getattr(attention.self, side).weight.detach().double()[:32] for side in ("query", "key"))
    assert torch.allclose(query.T @ key, best, atol=1e-5)
    product = attention.self.value.weight.detach().T @ attention.output.dense.weight.detach().T  # W_v W_o
    assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.05)


def test_mimetic_writes_values_into_a_fused_tensor() -> None:
    model, without = tiny_models.gpt2(), tiny_models.gpt2()
    mimetic_init_(model, value=True)
    mimetic_init_(without)
    one, other = (each.transformer.h[0].attn for each in (model, without))
    fused = one.c_attn.weight.detach()  # [d, (q, k, v)]
    assert torch.equal(fused[:, :64], other.c_attn.weight[:, :64])
    product = fused[:, 64:].double() @ one.c_proj.weight.detach().double()  # W_v W_o = 0.4 Z − 0.4 I
    rest = product + 0.4 * torch.eye(32, dtype=torch.float64)
    assert 0.9 < float(rest.square().mean().sqrt()) / (0.4 / 32**0.5) < 1.1
