"""The norm before an attention: divided by its gain, what a live model's queries read has root mean square 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import attngeo
from tests.weights import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def gemma2() -> Any:
    """Return a Gemma 2, whose norms store gain − 1."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40)).eval()  # fmt: skip


def falcon() -> Any:
    """Return a Falcon of the newer architecture (40B, 180B), whose attention and MLP read two norms."""
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(FalconConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True)).eval()  # fmt: skip


# Name → model, and whether its norm subtracts the mean.
MODELS = {
    "bert": (tiny_models.bert, True),
    "gpt2": (tiny_models.gpt2, True),
    "llama": (tiny_models.llama, False),
    "gemma2": (gemma2, False),
    "falcon": (falcon, True),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gain_is_that_of_the_vectors_that_queries_read(name: str) -> None:
    make, centred = MODELS[name]
    model = make()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(50)  # so that the ε of a norm does not matter
        for path, weight in model.named_parameters():
            if weight.dim() == 1 and path.endswith("weight"):  # the gain of a norm
                weight.add_(0.3 * torch.randn(weight.shape, generator=draw))
    layers = list(attngeo.attention_layers(model, norms=True))
    read: dict[str, Any] = {}
    for weights in layers:
        path = weights.tensors[0].removesuffix(".weight")
        keep = lambda _, inputs, path=path: read.update({path: inputs[0].detach()})  # noqa: E731
        model.get_submodule(path).register_forward_pre_hook(keep)
    with torch.no_grad():
        model(input_ids=torch.arange(5, 17)[None])
    assert len(layers) == len(read) == 2
    for weights, x in zip(layers, read.values(), strict=True):  # [1, 12, d]
        assert weights.norm is not None and weights.norm.centred is centred
        unit = x[0] / torch.from_numpy(weights.norm.gain)
        assert torch.allclose(unit.square().mean(1), torch.ones(12), atol=1e-3)
        if centred:
            assert unit.mean(1).abs().max() < 1e-5


def funnel() -> Any:
    """Return a Funnel of two blocks: the first layer of the second one reads pooled vectors."""
    from transformers import FunnelConfig, FunnelModel

    return FunnelModel(FunnelConfig(
        vocab_size=60, d_model=32, n_head=4, d_head=8, d_inner=40, block_sizes=[2, 2],
        num_decoder_layers=2))  # fmt: skip


def sew_d() -> Any:
    """Return a SEW-D, whose encoder has a norm on the embeddings of relative positions."""
    from transformers import SEWDConfig, SEWDModel

    return SEWDModel(SEWDConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, conv_dim=(32, 32),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
        max_position_embeddings=64, position_buckets=16))  # fmt: skip


def molmo2(norm_after: bool) -> Any:
    from transformers import Molmo2TextConfig, Molmo2TextModel

    return Molmo2TextModel(Molmo2TextConfig(
        vocab_size=60, additional_vocab_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=40, norm_after=norm_after))  # fmt: skip


def intern_vit(norm_type: str) -> Any:
    from transformers import InternVLVisionConfig, InternVLVisionModel

    return InternVLVisionModel(InternVLVisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40, image_size=[16, 16],
        patch_size=[8, 8], norm_type=norm_type))  # fmt: skip


# Name → model, and for each layer the norm that its queries read; None: they read something else.
SOME_KNOWN = {
    "funnel": (funnel, {
        "decoder 0": None,
        "decoder 1": "decoder.layers.0.ffn.layer_norm",
        "encoder 0": "embeddings.layer_norm",
        "encoder 1": "encoder.blocks.0.0.ffn.layer_norm",
        "encoder 2": None,
        "encoder 3": "encoder.blocks.1.0.ffn.layer_norm",
    }),
    "sew-d": (sew_d, {"encoder 0": None, "encoder 1": "encoder.encoder.layer.0.output.LayerNorm"}),
    "molmo2": (lambda: molmo2(False), {"decoder 0": "layers.0.attn_norm", "decoder 1": "layers.1.attn_norm"}),
    "molmo2, norm after": (lambda: molmo2(True), {"decoder 0": None, "decoder 1": None}),
    "InternViT": (lambda: intern_vit("layer_norm"), {"encoder 0": "encoder.layer.0.layernorm_before"}),
    "InternViT, RMSNorm": (lambda: intern_vit("rms_norm"), {"encoder 0": None}),  # not known: found with LayerNorm
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # SEW-D is written with it
@pytest.mark.parametrize("name", SOME_KNOWN)
def test_only_the_norm_that_queries_read_is_folded_in(name: str, tmp_path: Path) -> None:
    make, expected = SOME_KNOWN[name]
    model = make().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.dim() == 1 and path.endswith("weight"):
                weight.add_(0.3 * torch.randn(weight.shape, generator=draw))
    model.save_pretrained(tmp_path)
    layers = {f"{weights.stack} {weights.layer}": weights for weights in attngeo.attention_layers(tmp_path, norms=True)}
    found = {layer: None if weights.norm is None else weights.norm.gain.tolist() for layer, weights in layers.items()}
    saved = load_file(tmp_path / "model.safetensors")
    assert found == {layer: norm and saved[f"{norm}.weight"].tolist() for layer, norm in expected.items()}
