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
from attngeo.training.pretraining.architectures.model import Model, Parts, Shape, Weights

_EPSILON = 1e-5  # of LayerNorm


class ModernBert(Model):
    """ModernBERT."""

    layer_path = "model.layers"
    rotary_base = 10_000.0  # the published models were trained with it before their context was extended

    @staticmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        word, gain = weights
        return layer_norm(F.embedding(ids, word), gain, None, _EPSILON).to(dtype)

    @staticmethod
    def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        gain, w_qkv = weights[:2]
        h = x if gain is None else layer_norm(x, gain, None, _EPSILON)  # the first layer has no norm here
        return split_heads(linear(h, w_qkv), setting)

    @staticmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        wo, gain, w_up, w_down = weights[2:]
        a = attend(*ModernBert.attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
        x = x + linear(a, wo)
        up, gate = linear(layer_norm(x, gain, None, _EPSILON), w_up).chunk(2, -1)  # [rows, length, intermediate]
        return x + linear(F.gelu(up) * gate, w_down)

    @staticmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        return layer_norm(x, weights[0], None, _EPSILON)

    @staticmethod
    def output_features(x: Tensor, weights: Weights) -> Tensor:
        dense, gain = weights[1:]
        h = F.gelu(linear(ModernBert.final_norm(x, weights), dense))
        return layer_norm(h, gain, None, _EPSILON)

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layers = [
            {
                "attn_norm.weight": (d,) if number else None,
                "attn.Wqkv.weight": (3 * d, d),
                "attn.Wo.weight": (d, d),
                "mlp_norm.weight": (d,),
                "mlp.Wi.weight": (2 * up, d),
                "mlp.Wo.weight": (d, up),
            }
            for number in range(shape.layers)
        ]
        embeddings = {
            "model.embeddings.tok_embeddings.weight": (shape.vocabulary, d),
            "model.embeddings.norm.weight": (d,),
        }
        head = {"model.final_norm.weight": (d,), "head.dense.weight": (d, d), "head.norm.weight": (d,)}
        return Parts(embeddings, layers, head, "decoder.bias")

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        rope = {"rope_type": "default", "rope_theta": ModernBert.rotary_base}
        without_bias = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
        return {
            "model_type": "modernbert",
            "architectures": ["ModernBertForMaskedLM"],
            "layer_types": ["full_attention"] * shape.layers,
            "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "norm_eps": _EPSILON,
            "decoder_bias": True,
            **dict.fromkeys(without_bias, False),
            **dict.fromkeys(f"{token}_token_id" for token in ("bos", "eos", "cls", "sep")),
        }

    @staticmethod
    def initial_std(name: str, shape: Shape) -> float:
        """Return the std of a matrix: smaller by √(2·layers) for those that write to the residual stream."""
        writes = name.endswith(("Wo.weight", "head.dense.weight"))
        return 0.02 / math.sqrt(2 * shape.layers) if writes else 0.02

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        query, key, _ = self.layer_weights[layer][1].chunk(3)
        return query, key
