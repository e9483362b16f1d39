"""Each control keeps the property of the symmetric initialisation that it promises to keep."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import attngeo
from attngeo.errors import LayoutError
from attngeo.live.parameters import attention_parameters
from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.by_name import initialise_
from attngeo.training.initialisation.controls import (
    independent_init_,
    negative_init_,
    rotated_init_,
    self_attending_init_,
    skewed_init_,
)
from attngeo.training.initialisation.mimetic import mimetic_init_
from attngeo.training.initialisation.rotations import random_rotations
from attngeo.training.initialisation.symmetric import symmetric_init_
from tests.weights import tiny_models

pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*a model with rotary embedding and a norm before its attention:UserWarning"),
]


_WITH_UNIT_SCALE = ("independent", "negative", "rotated", "self-attending", "skewed", "indefinite",
                    "large-symmetric", "small-skewed")  # fmt: skip


def factors(model: Any) -> list[Tensor]:
    """Return queries and keys [layers, heads, r, d] in float64."""
    layers = attention_parameters(model).layers
    return [
        torch.stack([getattr(layer, side).double().reshape(-1, 32, 128) for layer in layers])
        for side in ("query", "key")
    ]


def forms(model: Any) -> Tensor:
    """Return M [layers, heads, d, d]."""
    query, key = factors(model)
    return query.mT @ key


def symmetry(m: Tensor) -> Tensor:
    return (m * m.mT).sum((-1, -2)) / m.square().sum((-1, -2))


def trace(m: Tensor) -> Tensor:
    return m.diagonal(dim1=-2, dim2=-1).sum(-1)


def test_controls_keep_what_they_promise() -> None:
    symmetric = tiny_models.bert(hidden_size=128, num_attention_heads=4)
    symmetric_init_(symmetric, scale="unit")
    x = torch.randn(50, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = forms(symmetric)
    m = {}
    for name in _WITH_UNIT_SCALE:
        model = tiny_models.bert(hidden_size=128, num_attention_heads=4)
        initialise_(model, name, scale="unit", seed=3)
        m[name] = forms(model)
        query, key = factors(model)
        if name == "rotated":  # every dimension of the model keeps its norm in the head space
            assert torch.allclose(query.norm(dim=-2), key.norm(dim=-2), rtol=1e-5)
            turns = (query @ torch.linalg.pinv(key)).flatten(0, 1)  # [layers·heads, r, r], Sᵀ of each head
            distances = torch.cdist(turns.flatten(1), turns.flatten(1))  # about √(2r) = 8 between two random ones
            assert float((distances + 8 * torch.eye(len(turns))).min()) > 6
    assert torch.allclose(m["negative"], -wanted, rtol=1e-5)
    assert symmetry(m["independent"]).abs().max() < 0.1
    assert symmetry(m["rotated"]).abs().max() < 0.2  # of the order of 1/r
    assert torch.allclose(trace(m["self-attending"]), trace(wanted), rtol=1e-4)
    assert symmetry(m["self-attending"]).max() < 0.8
    assert torch.linalg.matrix_rank(m["self-attending"], rtol=1e-4).max() == 32
    diagonal = torch.einsum("nd,lhde,ne->lhn", x, m["skewed"], x)
    assert torch.allclose(diagonal, torch.einsum("nd,lhde,ne->lhn", x, wanted, x), rtol=1e-4)
    assert symmetry(m["skewed"]).abs().max() < 1e-5
    assert symmetry(m["indefinite"]).min() > 1 - 1e-6
    assert (trace(m["indefinite"]) / trace(wanted)).abs().max() < 0.15  # of the order of √(2/(r·d)) = 0.02, per head
    values = torch.linalg.eigvalsh((m["indefinite"] + m["indefinite"].mT) / 2)
    assert int((values > 1e-6).sum(-1).max()) == int((values < -1e-6).sum(-1).max()) == 16
    norm = {name: form.norm(dim=(-1, -2)) for name, form in (*m.items(), ("symmetric", wanted))}
    assert torch.allclose(norm["indefinite"], norm["symmetric"], rtol=0.15)  # smaller by (1 + r/d)^½
    assert torch.allclose(norm["small-skewed"], norm["symmetric"], rtol=1e-4)
    assert torch.allclose(norm["large-symmetric"], norm["skewed"], rtol=1e-4)
    assert torch.allclose(m["small-skewed"], m["skewed"] / 2**0.5, rtol=1e-4, atol=1e-7)
    assert torch.allclose(m["large-symmetric"], wanted * 2**0.5, rtol=1e-4, atol=1e-7)


def test_the_indefinite_initialisation_is_symmetric_at_every_offset() -> None:
    """Two dimensions that rotate together have the same sign; otherwise it would be symmetric at offset 0 only."""
    model = tiny_models.llama()
    initialise_(model, "indefinite", scale="unit")
    heads = attngeo.score(model, nulls=False, folded=False).frame.drop_nulls("head")
    for score in ("symmetry", "symmetry_rope"):
        assert heads[score].min() > 1 - 1e-6


@pytest.mark.parametrize("name", _WITH_UNIT_SCALE)
def test_keys_of_a_head_that_are_all_zero_stay_finite(name: str) -> None:
    model = BertModel(BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, vocab_size=9))
    with torch.no_grad():
        model.encoder.layer[0].attention.self.key.weight[:16] = 0
    initialise_(model, name, scale="unit")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_random_rotations_are_uniform_rotations() -> None:
    rotations = random_rotations((2000,), 3, torch.Generator().manual_seed(0))
    assert torch.allclose(rotations @ rotations.mT, torch.eye(3, dtype=rotations.dtype), atol=1e-12)
    assert torch.allclose(torch.linalg.det(rotations), torch.ones(2000, dtype=rotations.dtype))
    # The entries of a uniform rotation have mean 0 and variance 1/3.
    assert float(rotations.mean(0).abs().max()) < 5 * (1 / 3 / 2000) ** 0.5
    assert float((rotations.square().mean(0) - 1 / 3).abs().max()) < 0.05


def test_grouped_heads_cannot_have_forms_of_their_own() -> None:
    for initialise in (self_attending_init_, mimetic_init_):
        with pytest.raises(LayoutError, match="2 query heads share a key head"):
            initialise(tiny_models.llama())
    for initialise in (rotated_init_, skewed_init_, independent_init_, negative_init_, authors_init_):
        assert len(initialise(tiny_models.llama()).layers) == 2


def test_a_rotation_per_head_needs_the_head_count() -> None:
    with pytest.raises(LayoutError, match="the rotated initialisation needs the head count"):
        rotated_init_(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
