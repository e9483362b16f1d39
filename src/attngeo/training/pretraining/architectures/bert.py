"""BERT: learned positions, GELU, biases; a norm after each sub-layer (post-norm), or before it (pre-norm).

There is no dropout, and the output embedding is tied to the input embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures.blocks import Setting, attend, layer_norm, linear, split_heads
from attngeo.training.pretraining.architectures.model import Model, Parts, Shape, Weights, with_bias

_EPSILON = 1e-12  # of LayerNorm


class Bert(Model):
    """BERT, with parameters named as in transformers' BertForMaskedLM and BertLMHeadModel."""

    layer_path = "bert.encoder.layer"

    @staticmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        word, position, token_type, gain, bias = weights
        x = F.embedding(ids, word) + (position[: ids.shape[1]] + token_type)  # [rows, length, d]
        return layer_norm(x, gain, bias, _EPSILON).to(dtype)

    @staticmethod
    def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        wq, bq, wk, bk, wv, bv = weights[:6]
        # One product for all three projections: x is read once.
        return split_heads(linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv])), setting)

    @staticmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        wo, bo, g1, b1, w_up, b_up, w_down, b_down, g2, b2 = weights[6:]
        a = attend(*Bert.attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
        x = _add_and_norm(x, linear(a, wo, bo), g1, b1)
        return _add_and_norm(x, linear(F.gelu(linear(x, w_up, b_up)), w_down, b_down), g2, b2)

    @staticmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        return x  # the last layer ends with a norm

    @staticmethod
    def output_features(x: Tensor, weights: Weights) -> Tensor:
        dense, dense_bias, gain, bias = weights
        return layer_norm(F.gelu(linear(x, dense, dense_bias)), gain, bias, _EPSILON)

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layer = {
            **with_bias("attention.self.query", d, d),
            **with_bias("attention.self.key", d, d),
            **with_bias("attention.self.value", d, d),
            **with_bias("attention.output.dense", d, d),
            **with_bias("attention.output.LayerNorm", d),
            **with_bias("intermediate.dense", up, d),
            **with_bias("output.dense", d, up),
            **with_bias("output.LayerNorm", d),
        }
        head = {
            **with_bias("cls.predictions.transform.dense", d, d),
            **with_bias("cls.predictions.transform.LayerNorm", d),
        }
        return Parts(_embeddings("bert", shape, shape.length), [layer] * shape.layers, head, "cls.predictions.bias")

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        return {
            "model_type": "bert",
            "architectures": ["BertLMHeadModel" if shape.causal else "BertForMaskedLM"],
            "is_decoder": shape.causal,
            "use_cache": shape.causal,
            "type_vocab_size": 1,
            "hidden_act": "gelu",
            "layer_norm_eps": _EPSILON,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        query, _, key, *_ = self.layer_weights[layer]
        return query, key


class PreNormBert(Bert):
    """BERT with a norm before each sub-layer and one after the last layer.

    Parameters are named as in transformers' RobertaPreLayerNormForMaskedLM and RobertaPreLayerNormForCausalLM, which
    compute the same. RoBERTa counts positions from 1, so the first position embedding is unused.
    """

    layer_path = "roberta_prelayernorm.encoder.layer"

    @staticmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        word, position, *others = weights
        return Bert.embed(ids, (word, position[1:], *others), dtype)

    @staticmethod
    def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        gain, bias = weights[8:10]
        return Bert.attention_inputs(layer_norm(x, gain, bias, _EPSILON), weights, setting)

    @staticmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        wo, bo, _, _, gain, bias, w_up, b_up, w_down, b_down = weights[6:]
        a = attend(*PreNormBert.attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
        x = x + linear(a, wo, bo)
        h = layer_norm(x, gain, bias, _EPSILON)
        return x + linear(F.gelu(linear(h, w_up, b_up)), w_down, b_down)

    @staticmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        gain, bias = weights[:2]
        return layer_norm(x, gain, bias, _EPSILON)

    @staticmethod
    def output_features(x: Tensor, weights: Weights) -> Tensor:
        return Bert.output_features(PreNormBert.final_norm(x, weights), weights[2:])

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layer = {
            **with_bias("attention.self.query", d, d),
            **with_bias("attention.self.key", d, d),
            **with_bias("attention.self.value", d, d),
            **with_bias("attention.output.dense", d, d),
            **with_bias("attention.LayerNorm", d),
            **with_bias("intermediate.LayerNorm", d),
            **with_bias("intermediate.dense", up, d),
            **with_bias("output.dense", d, up),
        }
        head = {
            **with_bias("roberta_prelayernorm.LayerNorm", d),
            **with_bias("lm_head.dense", d, d),
            **with_bias("lm_head.layer_norm", d),
        }
        embeddings = _embeddings("roberta_prelayernorm", shape, shape.length + 1)
        return Parts(embeddings, [layer] * shape.layers, head, "lm_head.bias")

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        return Bert.transformers_config(shape) | {
            "model_type": "roberta-prelayernorm",
            "architectures": [f"RobertaPreLayerNormFor{'CausalLM' if shape.causal else 'MaskedLM'}"],
            "max_position_embeddings": shape.length + 1,
        }


def _embeddings(base: str, shape: Shape, positions: int) -> dict[str, tuple[int, ...]]:
    """Return the parameters of the embeddings; base: name of the model without its head."""
    return {
        f"{base}.embeddings.word_embeddings.weight": (shape.vocabulary, shape.hidden),
        f"{base}.embeddings.position_embeddings.weight": (positions, shape.hidden),
        f"{base}.embeddings.token_type_embeddings.weight": (1, shape.hidden),
        **with_bias(f"{base}.embeddings.LayerNorm", shape.hidden),
    }


def _add_and_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return LayerNorm(x + y), computed in float32 and returned in the type of x."""
    return F.layer_norm(x.float() + y.float(), x.shape[-1:], gain, bias, _EPSILON).to(x.dtype)
