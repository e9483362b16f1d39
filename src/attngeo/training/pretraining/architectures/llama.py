"""LLaMA: RMSNorm before each sub-layer, rotary positions, SwiGLU, no biases.

Parameters are named as in transformers' LlamaForCausalLM. The output embedding is tied to the input embedding, and each
query head has a key head of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures.blocks import Setting, attend, linear, rms_norm, split_heads
from attngeo.training.pretraining.architectures.model import Model, Parts, Shape, Weights

_EPSILON = 1e-5  # of RMSNorm


class Llama(Model):
    """LLaMA."""

    layer_path = "model.layers"
    rotary_base = 10_000.0

    @staticmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        return F.embedding(ids, weights[0]).to(dtype)

    @staticmethod
    def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        wq, wk, wv, *_, gain, _ = weights
        # One product for all three projections: x is read once.
        return split_heads(linear(rms_norm(x, gain, _EPSILON), torch.cat([wq, wk, wv])), setting)

    @staticmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        wo, w_gate, w_up, w_down, _, gain = weights[3:]
        a = attend(*Llama.attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
        x = x + linear(a, wo)
        gate, up = linear(rms_norm(x, gain, _EPSILON), torch.cat([w_gate, w_up])).chunk(2, -1)  # [rows, length, up]
        return x + linear(F.silu(gate) * up, w_down)

    @staticmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        return rms_norm(x, weights[0], _EPSILON)

    output_features = final_norm

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layer = {
            **{f"self_attn.{side}_proj.weight": (d, d) for side in "qkvo"},
            "mlp.gate_proj.weight": (up, d),
            "mlp.up_proj.weight": (up, d),
            "mlp.down_proj.weight": (d, up),
            "input_layernorm.weight": (d,),
            "post_attention_layernorm.weight": (d,),
        }
        embeddings = {"model.embed_tokens.weight": (shape.vocabulary, d)}
        return Parts(embeddings, [layer] * shape.layers, {"model.norm.weight": (d,)})

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_key_value_heads": shape.heads,
            "head_dim": shape.head_size,
            "rope_parameters": {"rope_type": "default", "rope_theta": Llama.rotary_base},
            "hidden_act": "silu",
            "rms_norm_eps": _EPSILON,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        query, key, *_ = self.layer_weights[layer]
        return query, key
