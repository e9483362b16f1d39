"""BERT with a norm before each sub-layer (pre-norm) and one after the last layer.

Parameters are named as in transformers' RobertaPreLayerNormForMaskedLM and RobertaPreLayerNormForCausalLM, which
compute the same. RoBERTa counts positions from 1, so the first position embedding is unused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures import bert
from attngeo.training.pretraining.architectures.blocks import Setting, attend, layer_norm, linear
from attngeo.training.pretraining.architectures.model import (
    Functions,
    Model,
    Shapes,
    Weights,
    linear_shapes,
    norm_shapes,
)
from attngeo.training.pretraining.architectures.shape import Shape

_EPSILON = bert.EPSILON


def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the embeddings [rows, length, d] of token ids [rows, length]."""
    word, position, token_type, gain, bias = weights
    return bert.embed(ids, (word, position[1:], token_type, gain, bias), dtype)


def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of one layer for its input x [rows, length, d]."""
    gain, bias = weights[:2]
    return bert.attention_inputs(layer_norm(x, gain, bias, _EPSILON), weights[2:8], setting)


def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
    """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""
    wo, bo, gain, bias, w_up, b_up, w_down, b_down = weights[8:]
    a = attend(*attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
    x = x + linear(a, wo, bo)
    h = layer_norm(x, gain, bias, _EPSILON)
    return x + linear(F.gelu(linear(h, w_up, b_up)), w_down, b_down)


def final_norm(x: Tensor, weights: Weights) -> Tensor:
    """Return the normalised output of the last layer, [..., d]."""
    gain, bias = weights[:2]
    return layer_norm(x, gain, bias, _EPSILON)


def output_features(x: Tensor, weights: Weights) -> Tensor:
    """Return the features [..., d] that the output layer maps to logits."""
    return bert.output_features(final_norm(x, weights), weights[2:])


class PreNormBert(Model):
    """BERT with norms before the sub-layers."""

    functions = Functions(embed, attention_inputs, layer, final_norm, output_features)
    embedding_names = tuple(name.replace("bert.", "roberta_prelayernorm.", 1) for name in bert.Bert.embedding_names)
    layer_path = "roberta_prelayernorm.encoder.layer"
    layer_names = tuple(
        f"{part}.{leaf}"
        for part in (
            "attention.LayerNorm",
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.LayerNorm",
            "intermediate.dense",
            "output.dense",
        )
        for leaf in ("weight", "bias")
    )
    head_names = (
        "roberta_prelayernorm.LayerNorm.weight",
        "roberta_prelayernorm.LayerNorm.bias",
        "lm_head.dense.weight",
        "lm_head.dense.bias",
        "lm_head.layer_norm.weight",
        "lm_head.layer_norm.bias",
    )
    output_names = ("roberta_prelayernorm.embeddings.word_embeddings.weight", "lm_head.bias")

    @staticmethod
    def parameter_shapes(shape: Shape) -> Shapes:
        """Return the shapes of all parameters by name."""
        d, up = shape.hidden, shape.intermediate
        one_layer: Shapes = {
            "attention": {
                "self": {side: linear_shapes(d, d) for side in ("query", "key", "value")},
                "output": {"dense": linear_shapes(d, d)},
                "LayerNorm": norm_shapes(d),
            },
            "intermediate": {"LayerNorm": norm_shapes(d), "dense": linear_shapes(up, d)},
            "output": {"dense": linear_shapes(d, up)},
        }
        return {
            "roberta_prelayernorm": {
                "embeddings": {
                    "word_embeddings": {"weight": (shape.vocabulary, d)},
                    "position_embeddings": {"weight": (shape.length + 1, d)},
                    "token_type_embeddings": {"weight": (1, d)},
                    "LayerNorm": norm_shapes(d),
                },
                "encoder": {"layer": {str(i): one_layer for i in range(shape.layers)}},
                "LayerNorm": norm_shapes(d),
            },
            "lm_head": {"bias": (shape.vocabulary,), "dense": linear_shapes(d, d), "layer_norm": norm_shapes(d)},
        }

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return the content of transformers' config.json."""
        kind = "CausalLM" if shape.causal else "MaskedLM"
        return {
            "model_type": "roberta-prelayernorm",
            "architectures": [f"RobertaPreLayerNormFor{kind}"],
            "max_position_embeddings": shape.length + 1,
            **bert.bert_settings(shape),
        }

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, [out, in]."""
        weights = self.layer_weights[layer]
        return weights[2], weights[4]
