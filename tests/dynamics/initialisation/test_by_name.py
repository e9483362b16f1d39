"""Starts on models of other kinds, and what they refuse: by name, and with nothing changed."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.dynamics.initialisation.recipes import authors_init_, mimetic_init_
from attngeo.dynamics.initialisation.symmetric import rotations, self_attending_init_, skewed_init_, symmetric_init_
from attngeo.errors import InputError, LayoutError
from tests.dynamics.initialisation.test_symmetric import symmetries
from tests.weights import tiny_models as tiny

pytestmark = pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")


def _stored(kind: str) -> Any:
    """Small models that store queries and keys in yet other ways."""
    import transformers as tf

    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    old = {"vocab_size": 60, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    made = {
        "codegen": lambda: tf.CodeGenModel(tf.CodeGenConfig(**old, rotary_dim=4)),
        "phi3": lambda: tf.Phi3Model(tf.Phi3Config(**sizes, **more, num_key_value_heads=2)),
        "falcon": lambda: tf.FalconModel(tf.FalconConfig(**sizes, new_decoder_architecture=True, num_kv_heads=2)),
        "qwen3_next": lambda: tf.Qwen3NextModel(
            tf.Qwen3NextConfig(**sizes, **more, **experts, num_key_value_heads=2, head_dim=8,
                               layer_types=["full_attention"] * 2)),
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return made[kind]()


@pytest.mark.parametrize("kind", ["codegen", "phi3", "falcon", "qwen3_next"])
def test_other_storages(kind: str) -> None:
    model, before = _stored(kind), dict(_stored(kind).named_parameters())
    done = symmetric_init_(model)
    assert len(done.layers) == 2
    found = symmetries(model)  # cut by scoring, which shares no code with the writing
    assert len(found[False]) == 2 * (4 + 1) and all(abs(s - 1) < 1e-6 for s in found[False])
    for layer in done.layers:
        changed = sum(int((model.get_parameter(name) != before[name]).sum()) for name in layer.tensors)
        assert changed <= 32 * 32  # the queries, [4 · 8, 32], and nothing else
    written = {name for layer in done.layers for name in layer.tensors}
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters() if name not in written)


def test_layers_that_are_one_tensor_under_two_names_are_written_once() -> None:
    model, single = tiny.bert(), tiny.bert(num_hidden_layers=1)
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.query, second.key = first.query, first.key
    single.bert.encoder.layer[0].attention.self.load_state_dict(first.state_dict())
    assert [layer.layer for layer in self_attending_init_(model).layers] == [0]
    self_attending_init_(single)
    assert torch.equal(first.key.weight, single.bert.encoder.layer[0].attention.self.key.weight)


def test_rotations_are_rotations_and_uniform() -> None:
    turns = rotations((2000,), 3, torch.Generator().manual_seed(0))
    assert torch.allclose(turns @ turns.mT, torch.eye(3, dtype=turns.dtype), atol=1e-12)
    assert torch.allclose(torch.linalg.det(turns), torch.ones(2000, dtype=turns.dtype))
    # entries of a uniform one have mean 0 and variance 1/3
    assert float(turns.mean(0).abs().max()) < 5 * (1 / 3 / 2000) ** 0.5
    assert float((turns.square().mean(0) - 1 / 3).abs().max()) < 0.05


def test_the_value_part_of_mimetic_finds_values_in_a_fused_tensor() -> None:
    model, without = tiny.gpt2(), tiny.gpt2()
    mimetic_init_(model, value=True)
    mimetic_init_(without)
    one, other = (each.transformer.h[0].attn for each in (model, without))
    fused = one.c_attn.weight.detach()  # [d, (q, k, v)]
    assert torch.equal(fused[:, :64], other.c_attn.weight[:, :64])
    product = fused[:, 64:].double() @ one.c_proj.weight.detach().double()  # W_v W_o = 0.4 Z − 0.4 I
    rest = product + 0.4 * torch.eye(32, dtype=torch.float64)
    assert 0.9 < float(rest.square().mean().sqrt()) / (0.4 / 32**0.5) < 1.1


def kept(model: Any) -> Any:
    """Whether every parameter is what it was when this was called."""
    before = {name: value.clone() for name, value in model.named_parameters()}
    return lambda: all(value.equal(before[name]) for name, value in model.named_parameters())


def test_a_start_that_is_refused_leaves_every_layer_as_it_was() -> None:
    model = tiny.bert()
    self_attention = model.bert.encoder.layer[1].attention.self  # the layer before it is sound
    self_attention.key.weight.data.zero_()
    same = kept(model)
    with pytest.raises(InputError, match=r"encoder layer 1 \(.*\): its key weights have std 0, nothing to multiply"):
        symmetric_init_(model, scale="unit")
    assert same()
    self_attention.key.weight.data[3, 4] = math.inf
    same = kept(model)
    with pytest.raises(InputError, match=r"encoder layer 1 .* its key weights hold NaN or infinity"):
        symmetric_init_(model)
    assert same()
    odd = tiny.bert(hidden_size=36)
    same = kept(odd)
    with pytest.raises(InputError, match="head size 9 is odd"):
        skewed_init_(odd)
    assert same()
    valueless = tiny.bert()
    valueless.bert.encoder.layer[1].attention.self.value = torch.nn.Identity()
    same = kept(valueless)
    for start in (lambda: mimetic_init_(valueless, value=True), lambda: authors_init_(valueless)):
        with pytest.raises(LayoutError, match=r"encoder layer 1 .*: no value projection found"):
            start()
        assert same()


@pytest.mark.parametrize("scale", [[1], "Unit", True, 0, math.nan])
def test_scales_that_are_none(scale: Any) -> None:
    with pytest.raises(InputError, match="expected None, 'unit' or a positive number"):
        symmetric_init_(tiny.bert(), scale=scale)


def test_adapted_queries_and_keys_are_refused_and_other_adapters_do_not_matter() -> None:
    """Written beside an adapter the form would not be symmetric; an adapted layer must not be passed over either."""
    peft = pytest.importorskip("peft")

    def adapted(**where: Any) -> Any:
        return peft.get_peft_model(tiny.bert(), peft.LoraConfig(r=4, init_lora_weights=False, **where))

    for where in ({"target_modules": ["query", "value"]}, {"target_modules": ["key"], "layers_to_transform": [0]}):
        model = adapted(**where)
        same = kept(model)
        with pytest.raises(LayoutError, match=r"layer\.0\.attention\.self\.\w+\.weight: is adapted"):
            symmetric_init_(model)
        assert same()
    model = adapted(target_modules=["value"])
    assert len(symmetric_init_(model).layers) == 2
    assert all(abs(s - 1) < 1e-6 for s in symmetries(model.unload())[False])


def test_layers_compiled_one_by_one() -> None:
    model = tiny.bert()
    layers = model.bert.encoder.layer
    layers[0] = torch.compile(layers[0], backend="eager")
    assert [layer.layer for layer in symmetric_init_(model).layers] == [0, 1]
    for layer in (layers[0]._orig_mod, layers[1]):
        assert torch.equal(layer.attention.self.query.weight, layer.attention.self.key.weight)


def test_what_cannot_be_written() -> None:
    with pytest.raises(InputError, match="OrderedDict: a torch module expected"):
        symmetric_init_(tiny.bert().state_dict())
    with pytest.raises(LayoutError, match="only cross-attention among the layers asked for"):
        symmetric_init_(tiny.t5(), stack="cross")
    with torch.inference_mode():
        model = tiny.bert()
    with pytest.raises(LayoutError, match="made in inference mode"):
        symmetric_init_(model)
    model = tiny.bert()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    with pytest.raises(LayoutError, match=r"layer\.0\..*query\.weight: is adapted, or not a parameter of its own"):
        symmetric_init_(model)


def test_a_decoder_whose_encoder_cannot_be_placed_is_still_called_one() -> None:
    """LongT5's encoder attends in pieces and is left out; what is left must not take its name."""
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    model = LongT5ForConditionalGeneration(
        LongT5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0)
    )
    done = symmetric_init_(model)
    assert [(layer.stack, layer.layer) for layer in done.layers] == [("decoder", 0), ("decoder", 1)]
    assert all(name.startswith("decoder.block.") for layer in done.layers for name in layer.tensors)
