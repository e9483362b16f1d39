"""ModernBERT: pre-norm, rotary positions, GeGLU, no biases except that of the output embedding.

Parameters are named as in transformers' ModernBertForMaskedLM. Every layer attends to the whole row. The first layer
has no norm before its attention: it reads the normalised embeddings.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures.blocks import Setting, attend, layer_norm, linear, split_heads
from attngeo.training.pretraining.architectures.model import (
    Functions,
    Model,
    Shapes,
    Weights,
    linear_shapes,
    norm_shapes,
)
from attngeo.training.pretraining.architectures.shape import Shape

_EPSILON = 1e-5  # of LayerNorm


def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the embeddings [rows, length, d] of token ids [rows, length]."""
    word, gain = weights
    return layer_norm(F.embedding(ids, word), gain, None, _EPSILON).to(dtype)


def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of one layer for its input x [rows, length, d]."""
    gain, w_qkv = weights[:2]
    h = x if gain is None else layer_norm(x, gain, None, _EPSILON)  # the first layer has no norm here
    return split_heads(linear(h, w_qkv), setting)


def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
    """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""
    wo, gain, w_up, w_down = weights[2:]
    a = attend(*attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
    x = x + linear(a, wo)
    up, gate = linear(layer_norm(x, gain, None, _EPSILON), w_up).chunk(2, -1)  # [rows, length, intermediate]
    return x + linear(F.gelu(up) * gate, w_down)


def final_norm(x: Tensor, weights: Weights) -> Tensor:
    """Return the normalised output of the last layer, [..., d]."""
    return layer_norm(x, weights[0], None, _EPSILON)


def output_features(x: Tensor, weights: Weights) -> Tensor:
    """Return the features [..., d] that the output layer maps to logits."""
    dense, gain = weights[1:]
    return layer_norm(F.gelu(linear(final_norm(x, weights), dense)), gain, None, _EPSILON)


class ModernBert(Model):
    """ModernBERT."""

    functions = Functions(embed, attention_inputs, layer, final_norm, output_features)
    embedding_names = ("model.embeddings.tok_embeddings.weight", "model.embeddings.norm.weight")
    layer_path = "model.layers"
    layer_names = (
        "attn_norm.weight",
        "attn.Wqkv.weight",
        "attn.Wo.weight",
        "mlp_norm.weight",
        "mlp.Wi.weight",
        "mlp.Wo.weight",
    )
    head_names = ("model.final_norm.weight", "head.dense.weight", "head.norm.weight")
    output_names = ("model.embeddings.tok_embeddings.weight", "decoder.bias")
    rotary_base = 10_000.0  # the published models were trained with it before their context was extended

    @staticmethod
    def parameter_shapes(shape: Shape) -> Shapes:
        """Return the shapes of all parameters by name."""
        d, up = shape.hidden, shape.intermediate
        norm = norm_shapes(d, bias=False)
        after_the_first: Shapes = {
            "attn_norm": norm,
            "attn": {"Wqkv": linear_shapes(3 * d, d, bias=False), "Wo": linear_shapes(d, d, bias=False)},
            "mlp_norm": norm,
            "mlp": {"Wi": linear_shapes(2 * up, d, bias=False), "Wo": linear_shapes(d, up, bias=False)},
        }
        first = {name: part for name, part in after_the_first.items() if name != "attn_norm"}
        return {
            "model": {
                "embeddings": {"tok_embeddings": {"weight": (shape.vocabulary, d)}, "norm": norm},
                "layers": {str(i): after_the_first if i else first for i in range(shape.layers)},
                "final_norm": norm,
            },
            "head": {"dense": linear_shapes(d, d, bias=False), "norm": norm},
            "decoder": {"bias": (shape.vocabulary,)},
        }

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return the content of transformers' config.json."""
        rope = {"rope_type": "default", "rope_theta": ModernBert.rotary_base}
        return {
            "model_type": "modernbert",
            "architectures": ["ModernBertForMaskedLM"],
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.intermediate,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": shape.length,
            "layer_types": ["full_attention"] * shape.layers,
            "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "norm_eps": _EPSILON,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "initializer_range": 0.02,
            "pad_token_id": shape.pad,
            "bos_token_id": None,
            "eos_token_id": None,
            "cls_token_id": None,
            "sep_token_id": None,
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    @staticmethod
    def initial_std(name: str, shape: Shape) -> float:
        """Return the std of a matrix: smaller by √(2·layers) for those that write to the residual stream."""
        writes = name.endswith(("Wo.weight", "head.dense.weight"))
        return 0.02 / math.sqrt(2 * shape.layers) if writes else 0.02

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, [out, in]."""
        query, key, _ = self.layer_weights[layer][1].chunk(3)
        return query, key
