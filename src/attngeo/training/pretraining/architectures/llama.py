"""LLaMA: RMSNorm before each sub-layer, rotary positions, SwiGLU, no biases.

Parameters are named as in transformers' LlamaForCausalLM. The output embedding is tied to the input embedding, and each
query head has a key head of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures.blocks import Setting, attend, linear, rms_norm, split_heads
from attngeo.training.pretraining.architectures.model import (
    Functions,
    Model,
    Shapes,
    Weights,
    linear_shapes,
    norm_shapes,
)
from attngeo.training.pretraining.architectures.shape import Shape

_EPSILON = 1e-5  # of RMSNorm


def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the embeddings [rows, length, d] of token ids [rows, length]."""
    return F.embedding(ids, weights[0]).to(dtype)


def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of one layer for its input x [rows, length, d]."""
    gain, wq, wk, wv = weights[:4]
    # One product for all three projections: x is read once.
    return split_heads(linear(rms_norm(x, gain, _EPSILON), torch.cat([wq, wk, wv])), setting)


def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
    """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""
    wo, gain, w_gate, w_up, w_down = weights[4:]
    a = attend(*attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
    x = x + linear(a, wo)
    gate, up = linear(rms_norm(x, gain, _EPSILON), torch.cat([w_gate, w_up])).chunk(2, -1)  # [rows, length, up]
    return x + linear(F.silu(gate) * up, w_down)


def final_norm(x: Tensor, weights: Weights) -> Tensor:
    """Return the normalised output of the last layer, [..., d]."""
    return rms_norm(x, weights[0], _EPSILON)


class Llama(Model):
    """LLaMA."""

    functions = Functions(embed, attention_inputs, layer, final_norm, output_features=final_norm)
    embedding_names = ("model.embed_tokens.weight",)
    layer_path = "model.layers"
    layer_names = (
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    )
    head_names = ("model.norm.weight",)
    output_names = ("model.embed_tokens.weight",)
    rotary_base = 10_000.0

    @staticmethod
    def parameter_shapes(shape: Shape) -> Shapes:
        """Return the shapes of all parameters by name."""
        d, up = shape.hidden, shape.intermediate
        norm = norm_shapes(d, bias=False)
        one_layer: Shapes = {
            "self_attn": {f"{side}_proj": linear_shapes(d, d, bias=False) for side in "qkvo"},
            "mlp": {
                "gate_proj": linear_shapes(up, d, bias=False),
                "up_proj": linear_shapes(up, d, bias=False),
                "down_proj": linear_shapes(d, up, bias=False),
            },
            "input_layernorm": norm,
            "post_attention_layernorm": norm,
        }
        return {
            "model": {
                "embed_tokens": {"weight": (shape.vocabulary, d)},
                "layers": {str(i): one_layer for i in range(shape.layers)},
                "norm": norm,
            }
        }

    @staticmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return the content of transformers' config.json."""
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.heads,
            "head_dim": shape.head_size,
            "intermediate_size": shape.intermediate,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": shape.length,
            "rope_parameters": {"rope_type": "default", "rope_theta": Llama.rotary_base},
            "hidden_act": "silu",
            "rms_norm_eps": _EPSILON,
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "pad_token_id": shape.pad,
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, [out, in]."""
        weights = self.layer_weights[layer]
        return weights[1], weights[2]
