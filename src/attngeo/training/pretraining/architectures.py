"""The architectures that can be pre-trained, each a class with the functions of its computation.

    Bert          learned positions, GELU, biases; a norm after each sub-layer
    PreNormBert   the same with a norm before each sub-layer
    ModernBert    pre-norm, rotary positions, GeGLU, no biases except that of the output embedding
    Llama         RMSNorm before each sub-layer, rotary positions, SwiGLU, no biases

There is no dropout, and the output embedding is tied to the input embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.model import (
    Model,
    Parts,
    Setting,
    Shape,
    Weights,
    attend,
    layer_norm,
    linear,
    rms_norm,
    split_heads,
    with_bias,
)

__all__ = ["Bert", "Llama", "Model", "ModernBert", "PreNormBert", "Shape"]

_BERT_EPSILON, _EPSILON = 1e-12, 1e-5  # of the norms of BERT, and of those of the others


# ---- BERT

_PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")


class Bert(Model):
    """BERT, with parameters named as in transformers' BertForMaskedLM and BertLMHeadModel."""

    layer_path = "bert.encoder.layer"

    @staticmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        word, position, token_type, gain, bias = weights
        x = F.embedding(ids, word) + (position[: ids.shape[1]] + token_type)  # [rows, length, d]
        return layer_norm(x, gain, bias, _BERT_EPSILON).to(dtype)

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
        return layer_norm(F.gelu(linear(x, dense, dense_bias)), gain, bias, _BERT_EPSILON)

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layer = {
            **with_bias((d, d), *_PROJECTIONS),
            **with_bias((d,), "attention.output.LayerNorm"),
            **with_bias((up, d), "intermediate.dense"),
            **with_bias((d, up), "output.dense"),
            **with_bias((d,), "output.LayerNorm"),
        }
        head = {
            **with_bias((d, d), "cls.predictions.transform.dense"),
            **with_bias((d,), "cls.predictions.transform.LayerNorm"),
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
            "layer_norm_eps": _BERT_EPSILON,
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
        return Bert.attention_inputs(layer_norm(x, gain, bias, _BERT_EPSILON), weights, setting)

    @staticmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        wo, bo, _, _, gain, bias, w_up, b_up, w_down, b_down = weights[6:]
        a = attend(*PreNormBert.attention_inputs(x, weights, setting), setting.causal, self_bias)  # [rows, length, d]
        x = x + linear(a, wo, bo)
        h = layer_norm(x, gain, bias, _BERT_EPSILON)
        return x + linear(F.gelu(linear(h, w_up, b_up)), w_down, b_down)

    @staticmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        gain, bias = weights[:2]
        return layer_norm(x, gain, bias, _BERT_EPSILON)

    @staticmethod
    def output_features(x: Tensor, weights: Weights) -> Tensor:
        return Bert.output_features(PreNormBert.final_norm(x, weights), weights[2:])

    @staticmethod
    def parts(shape: Shape) -> Parts:
        d, up = shape.hidden, shape.intermediate
        layer = {
            **with_bias((d, d), *_PROJECTIONS),
            **with_bias((d,), "attention.LayerNorm", "intermediate.LayerNorm"),
            **with_bias((up, d), "intermediate.dense"),
            **with_bias((d, up), "output.dense"),
        }
        head = {
            **with_bias((d,), "roberta_prelayernorm.LayerNorm"),
            **with_bias((d, d), "lm_head.dense"),
            **with_bias((d,), "lm_head.layer_norm"),
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
        **with_bias((shape.hidden,), f"{base}.embeddings.LayerNorm"),
    }


def _add_and_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return LayerNorm(x + y), computed in float32 and returned in the type of x."""
    return layer_norm(x.float() + y.float(), gain, bias, _BERT_EPSILON).to(x.dtype)


# ---- ModernBERT and LLaMA


class ModernBert(Model):
    """ModernBERT, with parameters named as in transformers' ModernBertForMaskedLM.

    Every layer attends to the whole row. The first layer has no norm before its attention: it reads the normalised
    embeddings.
    """

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


class Llama(Model):
    """LLaMA, with parameters named as in transformers' LlamaForCausalLM; each query head has its own key head."""

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
