"""Starts change queries and keys as they say, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.dynamics.initialisation.by_name import STARTS, start_
from attngeo.dynamics.initialisation.recipes import authors_init_, mimetic_init_
from attngeo.dynamics.initialisation.symmetric import (
    independent_init_,
    negative_init_,
    rotated_init_,
    self_attending_init_,
    skewed_init_,
    symmetric_init_,
)
from attngeo.errors import InputError, LayoutError
from attngeo.live.parameters import live
from attngeo.weights.scoring.score import score
from tests.weights import tiny_models as tiny

pytestmark = pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")


def symmetries(ref: Any) -> dict[bool, list[float]]:
    """{cross: symmetry of every layer and head}."""
    frame = score(ref, nulls=False, folded=False).frame
    return {bool(cross): [s for s, c in zip(frame["symmetry"], frame["cross"], strict=True) if c == cross]
            for cross in set(frame["cross"])}  # fmt: skip


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("scale", [None, "unit", 0.05])
def test_symmetric_and_nothing_else(family: str, scale: Any) -> None:
    model, before = tiny.FAMILIES[family](), tiny.FAMILIES[family]()
    done = symmetric_init_(model, scale=scale)
    found = symmetries(model)
    assert all(abs(s - 1) < 1e-6 for s in found[False])
    written = {name for layer in done.layers for name in layer.tensors}
    old = dict(before.named_parameters())
    for name, value in model.named_parameters():
        if name not in written:
            assert torch.equal(value, old[name]), name
    # within a fused tensor, what is neither query nor key stays bitwise; scale None leaves the keys so too
    for new, was in zip(live(model).projections, live(before).projections, strict=True):
        new.query.copy_(was.query)
        if scale is None:
            assert torch.equal(new.key, was.key)
        new.key.copy_(was.key)
        target = {None: layer_rms(was.key), "unit": 1 / math.sqrt(32), 0.05: 0.05}[scale]
        after = next(layer for layer in done.layers if (layer.stack, layer.layer) == (new.stack, new.layer))
        assert after.std[1] == pytest.approx(target, rel=1e-6)
    assert all(torch.equal(value, old[name]) for name, value in model.named_parameters())
    if family == "t5":
        assert len(done.cross) == 2 and max(map(abs, found[True])) < 0.9
        assert {layer.stack for layer in done.layers} == {"encoder", "decoder"}


def layer_rms(weight: torch.Tensor) -> float:
    return float(weight.double().square().mean().sqrt())


def test_grouped_queries_copy_their_own_group() -> None:
    model = tiny.llama()
    symmetric_init_(model)
    attention = model.model.layers[1].self_attn
    query = attention.q_proj.weight.view(4, 8, 32)
    key = attention.k_proj.weight.view(2, 8, 32)
    assert torch.equal(query, key[[0, 0, 1, 1]])


def test_saved_and_loaded(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    model = tiny.bert()
    symmetric_init_(model, scale="unit")
    model.save_pretrained(tmp_path)
    assert all(abs(s - 1) < 1e-6 for s in symmetries(tmp_path)[False])
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_shared_layers_are_scaled_once() -> None:
    from transformers import AlbertConfig, AlbertForMaskedLM

    model = AlbertForMaskedLM(AlbertConfig(vocab_size=60, hidden_size=32, embedding_size=16, num_attention_heads=4,
                                           intermediate_size=40, num_hidden_layers=3))  # fmt: skip
    done = symmetric_init_(model, scale="unit")
    assert len(done.layers) == 1
    assert all(abs(s - 1) < 1e-6 for s in symmetries(model)[False])


def test_without_a_config_the_layer_is_copied_whole() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    done = symmetric_init_(layer, num_heads=2)
    assert done.layers and torch.equal(layer.self_attn.in_proj_weight[:16], layer.self_attn.in_proj_weight[16:32])
    with pytest.raises(LayoutError, match="head count"):
        rotated_init_(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))


def test_latent_attention_is_refused() -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    model = DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=40, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1, n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1,
        moe_intermediate_size=16))  # fmt: skip
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(LayoutError, match="latent"):
        symmetric_init_(model)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_controls_keep_what_they_promise() -> None:
    base = tiny.bert(hidden_size=128, num_attention_heads=4)
    symmetric = tiny.bert(hidden_size=128, num_attention_heads=4)
    symmetric_init_(symmetric, scale="unit")
    x = torch.randn(50, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def factors(model: Any) -> list[torch.Tensor]:
        layers = live(model).projections
        return [torch.stack([getattr(one, side).double().reshape(-1, 32, 128) for one in layers])
                for side in ("query", "key")]  # fmt: skip

    def forms(model: Any) -> torch.Tensor:
        query, key = factors(model)
        return query.mT @ key  # [layers, heads, d, d]

    def scores(m: torch.Tensor) -> torch.Tensor:
        return (m * m.mT).sum((-1, -2)) / m.square().sum((-1, -2))

    def trace(m: torch.Tensor) -> torch.Tensor:
        return m.diagonal(dim1=-2, dim2=-1).sum(-1)

    wanted = forms(symmetric)
    made = {}
    for name in ("independent", "negative", "rotated", "self-attending", "skewed"):
        model = tiny.bert(hidden_size=128, num_attention_heads=4)
        start_(model, name, scale="unit", seed=3)
        made[name] = forms(model)
        query, key = factors(model)
        if name == "rotated":  # every dimension of the model keeps its norm in the head space
            assert torch.allclose(query.norm(dim=-2), key.norm(dim=-2), rtol=1e-5)
    assert torch.allclose(made["negative"], -wanted, rtol=1e-5)
    assert scores(made["independent"]).abs().max() < 0.1
    assert scores(made["rotated"]).abs().max() < 0.2  # of the order of 1/r
    assert torch.allclose(trace(made["self-attending"]), trace(wanted), rtol=1e-4)
    assert scores(made["self-attending"]).max() < 0.8
    assert torch.linalg.matrix_rank(made["self-attending"], rtol=1e-4).max() == 32
    diagonal = torch.einsum("nd,lhde,ne->lhn", x, made["skewed"], x)
    assert torch.allclose(diagonal, torch.einsum("nd,lhde,ne->lhn", x, wanted, x), rtol=1e-4)
    assert scores(made["skewed"]).abs().max() < 1e-5
    assert base.config.hidden_size == 128


@pytest.mark.parametrize("name", [name for name in STARTS if name != "baseline"])
def test_same_seed_same_start(name: str) -> None:
    scale = None if "mimetic" in name or name == "authors" else "unit"
    once, twice, other = (tiny.bert() for _ in range(3))
    for model, seed in ((once, 5), (twice, 5), (other, 6)):
        start_(model, name, scale=scale, seed=seed)
    same = [torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True)]
    assert all(same)
    drawn = name in ("rotated", "skewed", "authors") or "mimetic" in name
    assert drawn != all(torch.equal(a, b) for a, b in zip(once.parameters(), other.parameters(), strict=True))
    touched = {
        name for name, value in tiny.bert().named_parameters() if not torch.equal(value, once.get_parameter(name))
    }
    allowed = ("query.weight", "key.weight")
    if name == "authors":
        allowed += ("query.bias", "key.bias", "value.weight", "value.bias")
    elif "value" in name:
        allowed += ("value.weight", "attention.output.dense.weight")
    assert touched and all(one.endswith(allowed) for one in touched)


def test_authors_recipe() -> None:
    model = tiny.bert(hidden_size=128)
    authors_init_(model, seed=1)
    attention = model.bert.encoder.layer[0].attention.self
    assert torch.equal(attention.query.weight, attention.key.weight)
    assert not torch.equal(attention.query.bias, attention.key.bias)
    for weight in (attention.key.weight, attention.value.weight):
        assert float(weight.detach().std()) == pytest.approx(1 / math.sqrt(3 * 128), rel=0.02)
        assert float(weight.detach().abs().max()) <= 1 / math.sqrt(128)
    assert float(attention.value.bias.detach().abs().max()) > 0


def test_mimetic_is_the_best_part_of_its_target() -> None:
    model = tiny.bert(hidden_size=64, num_attention_heads=2)
    mimetic_init_(model, strength=0.7, value=True, seed=2)
    draw = torch.Generator().manual_seed(2)
    target = 0.7 * torch.randn(64, 64, generator=draw, dtype=torch.float64) / 8 + 0.7 * torch.eye(
        64, dtype=torch.float64
    )
    u, sigma, v = torch.linalg.svd(target)
    best = u[:, :32] * sigma[:32] @ v[:32]
    attention = model.bert.encoder.layer[0].attention
    query, key = (getattr(attention.self, side).weight.detach().double()[:32] for side in ("query", "key"))
    assert torch.allclose(query.T @ key, best, atol=1e-5)
    product = attention.self.value.weight.detach().T @ attention.output.dense.weight.detach().T  # W_v W_o
    assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.05)


@pytest.mark.parametrize(("call", "message"), [
    (lambda model: symmetric_init_(model, scale="units"), "expected None, 'unit' or a positive number"),
    (lambda model: symmetric_init_(model, scale=-1.0), "expected None, 'unit' or a positive number"),
    (lambda model: start_(model, "symetric"), "did you mean 'symmetric'"),
])  # fmt: skip
def test_bad_settings(call: Any, message: str) -> None:
    model = tiny.bert()
    with pytest.raises(InputError, match=message):
        call(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny.bert().parameters(), strict=True))


def test_grouped_heads_refuse_forms_of_their_own() -> None:
    for start in (self_attending_init_, mimetic_init_):
        with pytest.raises(LayoutError, match="share a key head"):
            start(tiny.llama())
    for start in (rotated_init_, skewed_init_, independent_init_, negative_init_, authors_init_):
        assert len(start(tiny.llama()).layers) == 2
