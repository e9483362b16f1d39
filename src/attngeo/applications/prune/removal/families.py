"""The model types whose heads can be removed, and what is known of each beyond the layout of its queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from attngeo.errors import InputError


@dataclass(frozen=True)
class Family:
    """Where the attention of one model type has its output projection, and which stream its output is added to.

    Paths are relative to the attention module; "../" leads to the module around it.
    """

    output: str  # the projection of the concatenated head outputs
    stream: str  # the module whose input is the residual stream: a norm, or "" for the attention module (post-norm)
    own_config: tuple[str, ...] = ()  # config values that the module's forward reads as its own number of query heads
    bias_heads: str | None = None  # the attribute with the head count of the position bias, which keeps all heads


_ROTARY_DECODER = Family("o_proj", "../input_layernorm")

FAMILIES: dict[str, Family] = {
    "bert": Family("../output.dense", ""),
    "roberta": Family("../output.dense", ""),
    "distilbert": Family("out_lin", ""),
    "albert": Family("dense", ""),
    "modernbert": Family("Wo", "../attn_norm"),
    "vit": Family("o_proj", "../layernorm_before"),
    "gpt2": Family("c_proj", "../ln_1"),
    "gpt_neox": Family("dense", "../input_layernorm"),
    "opt": Family("out_proj", "../self_attn_layer_norm"),
    "llama": _ROTARY_DECODER,
    "mistral": _ROTARY_DECODER,
    "qwen2": _ROTARY_DECODER,
    "qwen3": _ROTARY_DECODER,
    "gemma2": _ROTARY_DECODER,
    "phi3": Family("o_proj", "../input_layernorm", own_config=("num_attention_heads",)),
    "t5": Family("o", "../layer_norm", bias_heads="n_heads"),
    "bart": Family("out_proj", ""),
    "whisper": Family("out_proj", "../{name}_layer_norm"),  # {name}: of the attention module, self_attn or encoder_attn
}


def pruning_family(model_type: str) -> Family:
    """Return what is known about `model_type`; InputError where its heads cannot be removed.

    >>> pruning_family("llama").output
    'o_proj'
    """
    if model_type not in FAMILIES:
        raise InputError(f"model type {model_type or '(none)'}: removing heads is supported for {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
