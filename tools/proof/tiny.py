"""Small configurations of any transformers model type, so that a model of it can be built and run in a second."""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedConfig

# Attributes that count things: enough must stay for every kind of layer to occur.
_LAYERS = re.compile(
    r"^(n_layers?|depth|.*(num|n)_.*(layers|blocks)|.*(encoder|decoder|hidden|text|vision|prediction)_layers|"
    r"num_(hidden_)?layers|layers|num_blocks)$"
)
_LAYER_LISTS = re.compile(r"(layer_types|depths|layers_block_type|block_types|mlp_layer_types|num_blocks|layer_depths)$")
_EXPERTS = re.compile(r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_moe_experts)$")
_VOCABULARY = re.compile(r"vocab_size$")
_WIDTHS = re.compile(
    r"^(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|emb_dim|dim|n_inner|d_ff|ffn_dim|width|"
    r".*intermediate_size|.*ffn_dim|.*hidden_size|.*hidden_dim|projection_dim|.*embed_dim|.*_dim_feedforward|"
    r"lru_width|conv_dim|qformer_hidden|decoder_hidden_size|encoder_hidden_size|inner_dim|out_hidden_size|"
    r"output_dim|text_embed_dim|d_inner|d_embed|.*d_model|model_dim|mlp_dim|depth_decoder.*size)$"
)


def sub_configs(config: PreTrainedConfig) -> dict[str, PreTrainedConfig]:
    return {k: v for k, v in vars(config).items() if isinstance(v, PreTrainedConfig)}


def shrink(config: PreTrainedConfig, *, layers: int, factor: int) -> None:
    """Cut depth to `layers` and divide widths by `factor`, in place and in every sub-configuration."""
    for sub in sub_configs(config).values():
        shrink(sub, layers=layers, factor=factor)
    for name, value in list(vars(config).items()):
        small = _smaller(name, value, layers, factor)
        if small is not value:
            try:
                setattr(config, name, small)
            except Exception:  # a validated attribute that refuses: the model may still build
                continue


def _smaller(name: str, value: Any, layers: int, factor: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if _EXPERTS.match(name):
            return min(value, 4)
        if _VOCABULARY.search(name):
            return value if value < 1200 else 1200
        if _LAYERS.match(name) and "hidden_layers_to" not in name:
            return min(value, layers)
        if _WIDTHS.match(name) and value % factor == 0 and value // factor >= 16:
            return value // factor
    if isinstance(value, list) and value:
        if _LAYER_LISTS.search(name):
            if all(isinstance(v, int) for v in value):
                return [min(v, 2) for v in value]
            return value[:layers]
    return value
