"""The symmetric initialisation makes every form symmetric and changes nothing but queries and keys."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from attngeo.live.parameters import attention_parameters
from attngeo.training.initialisation.controls import self_attending_init_
from attngeo.training.initialisation.scale import rms
from attngeo.training.initialisation.symmetric import symmetric_init_
from tests.training.initialisation.scored_symmetry import symmetry_scores
from tests.weights import tiny_models

pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*a model with rotary embedding and a norm before its attention:UserWarning"),
]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("scale", [None, "unit", 0.05])
def test_forms_become_symmetric_and_nothing_else_changes(family: str, scale: Any) -> None:
    model, before = tiny_models.FAMILIES[family](), tiny_models.FAMILIES[family]()
    result = symmetric_init_(model, scale=scale)
    scores = symmetry_scores(model)
    assert all(abs(s - 1) < 1e-6 for s in scores[False])
    written = {name for layer in result.layers for name in layer.tensors}
    old = dict(before.named_parameters())
    for name, value in model.named_parameters():
        if name not in written:
            assert torch.equal(value, old[name]), name
    # Within a fused tensor, what is neither query nor key keeps its bits; with scale None the keys do too.
    for new, was in zip(attention_parameters(model).layers, attention_parameters(before).layers, strict=True):
        new.query.copy_(was.query)
        if scale is None:
            assert torch.equal(new.key, was.key)
        new.key.copy_(was.key)
        target = {None: rms(was.key), "unit": 1 / math.sqrt(32), 0.05: 0.05}[scale]
        layer = next(layer for layer in result.layers if (layer.stack, layer.layer) == (new.stack, new.layer))
        assert layer.std[1] == pytest.approx(target, rel=1e-6)
    assert all(torch.equal(value, old[name]) for name, value in model.named_parameters())
    if family == "t5":
        assert len(result.cross) == 2 and max(map(abs, scores[True])) < 0.9
        assert {layer.stack for layer in result.layers} == {"encoder", "decoder"}


@pytest.mark.parametrize("family", ["llama", "neox", "modernbert", "falcon", "olmo", "bert", "gpt2", "nomic_bert"])
def test_a_warning_names_models_that_lose_by_it(family: str) -> None:
    """Pre-norm with rotary embedding; neither a post-norm model, even if it rotates, nor one with learned positions."""
    others = {"modernbert": _modernbert, "nomic_bert": _nomic_bert, "falcon": _falcon, "olmo": _olmo}
    made = (others | tiny_models.FAMILIES)[family]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        symmetric_init_(made, scale="unit")
    messages = [str(one.message) for one in caught if one.category is UserWarning]
    if family in ("bert", "gpt2", "nomic_bert"):
        assert messages == []
    else:
        (message,) = messages
        assert message.startswith(f"{type(made).__name__}: a model with rotary embedding")


def _modernbert() -> nn.Module:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(ModernBertConfig(vocab_size=64, pad_token_id=0, **_SIZE))


def _nomic_bert() -> nn.Module:
    """A post-norm model with rotary embedding."""
    from transformers import CONFIG_MAPPING, AutoModel

    return AutoModel.from_config(CONFIG_MAPPING["nomic_bert"](vocab_size=64, pad_token_id=0, **_SIZE))


def _falcon() -> nn.Module:
    """A Falcon of the newer architecture (40B, 180B), whose norm before the attention is called ln_attn."""
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2}
    return FalconForCausalLM(FalconConfig(vocab_size=64, new_decoder_architecture=True, **sizes))


def _olmo() -> nn.Module:
    """A model whose norm before the attention has no weights."""
    from transformers import OlmoConfig, OlmoForCausalLM

    return OlmoForCausalLM(OlmoConfig(vocab_size=64, pad_token_id=0, eos_token_id=1, **_SIZE))


_SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_grouped_queries_copy_the_key_head_they_read() -> None:
    model = tiny_models.llama()
    symmetric_init_(model)
    attention = model.model.layers[1].self_attn
    query = attention.q_proj.weight.view(4, 8, 32)
    key = attention.k_proj.weight.view(2, 8, 32)
    assert torch.equal(query, key[[0, 0, 1, 1]])


def test_an_initialised_model_can_be_saved_and_loaded(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    model = tiny_models.bert()
    symmetric_init_(model, scale="unit")
    model.save_pretrained(tmp_path)
    assert all(abs(s - 1) < 1e-6 for s in symmetry_scores(tmp_path)[False])
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_shared_layers_are_scaled_once() -> None:
    from transformers import AlbertConfig, AlbertForMaskedLM

    model = AlbertForMaskedLM(AlbertConfig(vocab_size=60, hidden_size=32, embedding_size=16, num_attention_heads=4,
                                           intermediate_size=40, num_hidden_layers=3))  # fmt: skip
    result = symmetric_init_(model, scale="unit")
    assert len(result.layers) == 1
    assert all(abs(s - 1) < 1e-6 for s in symmetry_scores(model)[False])


def test_layers_that_share_a_tensor_under_two_names_are_written_once() -> None:
    model, single = tiny_models.bert(), tiny_models.bert(num_hidden_layers=1)
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.query, second.key = first.query, first.key
    single.bert.encoder.layer[0].attention.self.load_state_dict(first.state_dict())
    assert [layer.layer for layer in self_attending_init_(model).layers] == [0]
    self_attending_init_(single)
    assert torch.equal(first.key.weight, single.bert.encoder.layer[0].attention.self.key.weight)


def test_a_module_without_a_config_is_initialised_with_num_heads() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    result = symmetric_init_(layer, num_heads=2)
    assert result.layers and torch.equal(layer.self_attn.in_proj_weight[:16], layer.self_attn.in_proj_weight[16:32])


def model_with_storage(kind: str) -> Any:
    """Return a small model that stores queries and keys in a way that `tiny_models` does not have."""
    import transformers as tf

    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    old_names = {"vocab_size": 60, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    makers = {
        "codegen": lambda: tf.CodeGenModel(tf.CodeGenConfig(**old_names, rotary_dim=4)),
        "phi3": lambda: tf.Phi3Model(tf.Phi3Config(**sizes, **more, num_key_value_heads=2)),
        "falcon": lambda: tf.FalconModel(tf.FalconConfig(**sizes, new_decoder_architecture=True, num_kv_heads=2)),
        "qwen3_next": lambda: tf.Qwen3NextModel(
            tf.Qwen3NextConfig(**sizes, **more, **experts, num_key_value_heads=2, head_dim=8,
                               layer_types=["full_attention"] * 2)),
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return makers[kind]()


@pytest.mark.parametrize("kind", ["codegen", "phi3", "falcon", "qwen3_next"])
def test_every_kind_of_storage_can_be_written(kind: str) -> None:
    model, before = model_with_storage(kind), dict(model_with_storage(kind).named_parameters())
    result = symmetric_init_(model)
    assert len(result.layers) == 2
    scores = symmetry_scores(model)
    assert len(scores[False]) == 2 * (4 + 1) and all(abs(s - 1) < 1e-6 for s in scores[False])
    for layer in result.layers:
        changed = sum(int((model.get_parameter(name) != before[name]).sum()) for name in layer.tensors)
        assert changed <= 32 * 32  # the queries, [4 · 8, 32], and nothing else
    written = {name for layer in result.layers for name in layer.tensors}
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters() if name not in written)


def test_a_decoder_keeps_its_name_where_the_encoder_is_not_scored() -> None:
    """LongT5's encoder attends in blocks and is left out; the decoder must not be called encoder for that."""
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    model = LongT5ForConditionalGeneration(
        LongT5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0)
    )
    with pytest.warns(
        UserWarning, match=r"left out, .* confirmed them: encoder\.block\.\*\.layer\.\*\.LocalSelfAttention"
    ):
        result = symmetric_init_(model)
    assert [(layer.stack, layer.layer) for layer in result.layers] == [("decoder", 0), ("decoder", 1)]
    assert all(name.startswith("decoder.block.") for layer in result.layers for name in layer.tensors)


def test_layers_compiled_one_by_one_are_initialised() -> None:
    model = tiny_models.bert()
    layers = model.bert.encoder.layer
    layers[0] = torch.compile(layers[0], backend="eager")
    assert [layer.layer for layer in symmetric_init_(model).layers] == [0, 1]
    for layer in (layers[0]._orig_mod, layers[1]):
        assert torch.equal(layer.attention.self.query.weight, layer.attention.self.key.weight)


def test_the_result_prints_the_layers_and_the_change_of_scale() -> None:
    result = symmetric_init_(tiny_models.t5(), scale=0.05)
    assert str(result).startswith("symmetric, std 0.05: 4 layers (decoder, encoder), std of W_k ")
    assert str(result).endswith(" → 0.05; 2 cross-attention layers unchanged")
    assert repr(result) == f"Initialisation({result})"  # what a notebook shows


def test_a_convolution_with_a_1x1_kernel_is_written_in_place() -> None:
    """Its kernel axes are dropped by a view: writing into a copy would be lost."""
    model = tiny_models.bert()
    convolution = torch.nn.Conv2d(32, 32, 1)
    strided = torch.empty(32, 1, 32, 1).transpose(1, 2)
    convolution.weight = torch.nn.Parameter(strided.copy_(convolution.weight.detach()))
    model.bert.encoder.layer[0].attention.self.query = convolution
    assert len(symmetric_init_(model).layers) == 2
    assert torch.equal(
        convolution.weight.detach().flatten(1), model.bert.encoder.layer[0].attention.self.key.weight.detach()
    )
