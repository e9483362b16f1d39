"""BERT: learned positions, a norm after each sub-layer (post-norm), GELU, biases.

Parameters are named as in transformers' BertForMaskedLM and BertLMHeadModel. There is no dropout, and the output
embedding is tied to the input embedding.
"""

from __future__ import annotations

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

EPSILON = 1e-12  # of LayerNorm


def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the embeddings [rows, length, d] of token ids [rows, length]."""
    word, position, token_type, gain, bias = weights
    x = F.embedding(ids, word) + (position[: ids.shape[1]] + token_type)  # [rows, length, d]
    return layer_norm(x, gain, bias, EPSILON).to(dtype)


def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of one layer for its input x [rows, length, d]."""
    wq, bq, wk, bk, wv, bv = weights[:6]
    # One product for all three projections: x is read once.
    return split_heads(linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv])), setting)


def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
    """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""
    wo, bo, g1, b1, w_up, b_up, w_down, b_down, g2, b2 = weights[6:]
    a = attend(*attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
    x = _add_and_norm(x, linear(a, wo, bo), g1, b1)
    return _add_and_norm(x, linear(F.gelu(linear(x, w_up, b_up)), w_down, b_down), g2, b2)


def final_norm(x: Tensor, weights: Weights) -> Tensor:
    """Return x: the last layer ends with a norm."""
    return x


def output_features(x: Tensor, weights: Weights) -> Tensor:
    """Return the features [..., d] that the output layer maps to logits."""
    dense, dense_bias, gain, bias = weights
    return layer_norm(F.gelu(linear(x, dense, dense_bias)), gain, bias, EPSILON)


def _add_and_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return LayerNorm(x + y), computed in float32 and returned in the type of x."""
    return F.layer_norm(x.float() + y.float(), x.shape[-1:], gain, bias, EPSILON).to(x.dtype)


def bert_settings(shape: Shape) -> dict[str, object]:
    """Return the settings that BERT and its pre-norm variant have in common."""
    return {
        "is_decoder": shape.causal,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "type_vocab_size": 1,
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "initializer_range": 0.02,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": shape.pad,
        "tie_word_embeddings": True,
        "use_cache": shape.causal,
        "dtype": "float32",
    }


class Bert(Model):
    """BERT."""

    functions = Functions(embed, attention_inputs, layer, final_norm, output_features)
    embedding_names = (
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
    )
    layer_path = "bert.encoder.layer"
    layer_names = tuple(
        f"{part}.{leaf}"
        for part in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        )
        for leaf in ("weight", "bias")
    )
    head_names = (
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
    )
    output_names = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")

    @staticmethod
    def parameter_shapes(shape: Shape) -> Shapes:
        """Return the shapes of all parameters by name."""
        d, up = shape.hidden, shape.intermediate
        one_layer: Shapes = {
            "attention": {
                "self": {side: linear_shapes(d, d) for side in ("query", "key", "value")},
                "output": {"dense": linear_shapes(d, d), "LayerNorm": norm_shapes(d)},
            },
            "intermediate": {"dense": linear_shapes(up, d)},
            "output": {"dense": linear_shapes(d, up), "LayerNorm": norm_shapes(d)},
        }
        return {
            "bert": {
                "embeddings": {
                    "word_embeddings": {"weight": (shape.vocabulary, d)},
                    "position_embeddings": {"weight": (shape.length, d)},
                    "token_type_embeddings": {"weight": (1, d)},
                    "LayerNorm": norm_shapes(d),
                },
                "encoder": {"layer": {str(i): one_layer for i in range(shape.layers)}},
            },
            "cls": {
                "predictions": {
                    "bias": (shape.vocabulary,),
                    "transform": {"dense": linear_shapes(d, d), "LayerNorm": norm_shapes(d)},
                }
            },
        }

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return the content of transformers' config.json."""
        return {
            "model_type": "bert",
            "architectures": ["BertLMHeadModel" if shape.causal else "BertForMaskedLM"],
            "max_position_embeddings": shape.length,
            **bert_settings(shape),
        }

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, [out, in]."""
        weights = self.layer_weights[layer]
        return weights[0], weights[2]
