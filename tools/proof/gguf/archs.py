"""GGUF architectures as tiny transformers models, and how llama.cpp's converter changes their tensors.

Apart from renaming, the conversion interleaves the rotary rows of LLaMA-like queries and keys, turns fused projections
into blocks [q | k | v], transposes Conv1D weights, and stores 1 + weight for norms that multiply by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

Convert = Callable[[str, Tensor, PreTrainedConfig], Tensor]


@dataclass(frozen=True)
class Arch:
    """One GGUF architecture: a transformers class, a tiny config, and how conversion changes its tensors."""

    model: str
    config: dict[str, Any]
    convert: Convert | None = None
    loads: bool = True  # transformers loads it from GGUF
    metadata: dict[str, Any] = field(default_factory=dict)  # keys the loader needs beyond the usual ones


def heads(config: PreTrainedConfig) -> tuple[int, int]:
    """Return the numbers of query and key heads, (H, G)."""
    queries = config.num_attention_heads
    return queries, getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or queries


def _rotary(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Reorder the rows of a head from [first half, second half] to pairs (first, second), which ggml rotates."""
    for leaf, count in zip(("q_proj.", "k_proj."), heads(config), strict=True):
        if leaf in name:
            return weight.unflatten(0, (count, 2, -1)).transpose(1, 2).reshape(weight.shape)
    return weight


def _blocks(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Reorder rows [G, (H/G queries, key, value), r] to [q | k | v]."""
    if "query_key_value." not in name:
        return weight
    queries, keys = heads(config)
    if getattr(config, "multi_query", False) and not config.new_decoder_architecture:
        keys = 1
    grouped = weight.unflatten(0, (keys, queries // keys + 2, -1))  # [G, H/G + 2, r, d]
    return torch.cat([part.flatten(0, 2) for part in (grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:])])


def _transpose(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Transpose Conv1D weights [in, out] to [out, in]."""
    return weight.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else weight


def _add_one(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Store the gain 1 + weight."""
    return weight + 1 if name.endswith("norm.weight") else weight


def _hybrid(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Qwen 3.5: store 1 + weight except for the linear attention's own norm, and −exp of its state matrix."""
    if name.endswith("A_log"):
        return -weight.exp()
    if "conv1d" in name:
        return weight.squeeze(1)
    return weight if "linear_attn.norm" in name else _add_one(name, weight, config)


def _expert_gate(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Store the one-row gate of the shared expert as a vector."""
    return weight.squeeze(0) if "shared_expert_gate" in name else weight


def _short_convolution(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Drop the middle axis of LFM2's convolution kernels."""
    return weight.squeeze(1) if "conv.conv" in name else weight


_TEXT = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_FOUR = {**_TEXT, "num_hidden_layers": 4}  # every fourth layer does not rotate
_SIZED = {**_TEXT, "head_dim": 16}  # heads wider than d / H
_SIX = {**_SIZED, "num_hidden_layers": 6}  # every sixth layer attends to everything
_EXPERTS = {**_TEXT, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
_EQUAL = {key: value for key, value in _TEXT.items() if key != "num_key_value_heads"}  # G = H
_WIDE = {**_EQUAL, "hidden_size": 96}  # several pairs of a head rotate where only some dimensions do
# 1,024 positions: transformers' loader does not read another number from the file.
_GPT = {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 96, "n_positions": 1024, "eos_token_id": 2}
_FALCON = {**_EQUAL, "num_kv_heads": 1, "alibi": False}
_FALCON_GROUPED = {**_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}
_T5 = {
    "d_model": 48, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 6, "vocab_size": 96,
    "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
_DELTA = {
    **_TEXT, "head_dim": 32, "num_hidden_layers": 4, "full_attention_interval": 2, "linear_num_key_heads": 4,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_DELTA_METADATA = {
    "full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 4,
    "ssm.time_step_rank": 4, "ssm.inner_size": 32, "rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0],
}  # fmt: skip

_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_LONGER = {
    "sliding_attention": _PLAIN,
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
}

ARCHS: dict[str, tuple[Arch, ...]] = {
    "llama": (
        Arch("LlamaForCausalLM", _SIZED, _rotary),
        Arch("LlamaForCausalLM", _EQUAL, _rotary),
        # transformers' loader does not read the divided frequencies
        Arch("LlamaForCausalLM", {**_SIZED, "rope_parameters": _LLAMA3}, _rotary, loads=False),
    ),
    "qwen2": (Arch("Qwen2ForCausalLM", _TEXT),),
    "qwen2moe": (Arch("Qwen2MoeForCausalLM", _EXPERTS, _expert_gate),),
    "qwen3": (Arch("Qwen3ForCausalLM", {**_TEXT, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 128}),),
    "qwen3moe": (Arch("Qwen3MoeForCausalLM", {**_EXPERTS, "head_dim": 16}),),
    "qwen35": (Arch("Qwen3_5ForCausalLM", _DELTA, _hybrid, metadata=_DELTA_METADATA),),
    "qwen35moe": (
        Arch(
            "Qwen3_5MoeForCausalLM",
            {**_EXPERTS, **_DELTA, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
            lambda name, weight, config: _expert_gate(name, _hybrid(name, weight, config), config),
            metadata={**_DELTA_METADATA, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32},
        ),
    ),
    "gpt-oss": (
        Arch("GptOssForCausalLM", {**_EXPERTS, "head_dim": 64, "rope_parameters": _PLAIN}),
        # Scaled by yarn, as its config usually is. Of such a file transformers' loader reads the key for the value.
        Arch("GptOssForCausalLM", {**_EXPERTS, "head_dim": 64}, loads=False),
    ),
    "minimax-m2": (Arch("MiniMaxM2ForCausalLM", {**_EXPERTS, "head_dim": 16}),),
    "lfm2": (
        Arch(
            "Lfm2ForCausalLM",
            {**_TEXT, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
            _short_convolution,
            metadata={"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
        ),
    ),
    "phi3": (Arch("Phi3ForCausalLM", _TEXT),),
    "gemma2": (Arch("Gemma2ForCausalLM", _SIZED, _add_one),),
    "gemma3": (
        Arch("Gemma3ForCausalLM", _SIX, _add_one),
        Arch("Gemma3ForCausalLM", {**_SIX, "rope_parameters": _LONGER}, _add_one),  # from 4 billion parameters on
        Arch("Gemma3ForCausalLM", _SIX, _add_one, metadata={"rope.freq_base_swa": 700.0}),
    ),
    "nemotron": (Arch("NemotronForCausalLM", {**_TEXT, "hidden_size": 96}, _add_one),),
    "stablelm": (Arch("StableLmForCausalLM", {**_TEXT, "hidden_size": 192}),),
    "starcoder2": (Arch("Starcoder2ForCausalLM", _TEXT),),
    "gpt2": (Arch("GPT2LMHeadModel", _GPT, _transpose),),
    "bloom": (Arch("BloomForCausalLM", {"hidden_size": 48, "n_layer": 2, "n_head": 6, "vocab_size": 96}, _blocks),),
    "falcon": (  # grouped first: only it has the norm's tensor, and rules are tried in order
        Arch("FalconForCausalLM", _FALCON_GROUPED, _blocks, loads=False),
        Arch("FalconForCausalLM", _FALCON, _blocks),
    ),
    "t5": (Arch("T5ForConditionalGeneration", _T5),),
    "t5encoder": (Arch("T5EncoderModel", _T5),),
    # transformers cannot load these from GGUF: the products recorded are those of the model that was converted.
    "bert": (Arch("BertModel", _EQUAL, loads=False),),
    "modern-bert": (
        Arch("ModernBertModel", {**_EQUAL, "num_hidden_layers": 4}, loads=False),
        Arch(
            "ModernBertModel",
            {**_EQUAL, "num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2},
            loads=False,
            metadata={"attention.sliding_window_pattern": 2, "rope.freq_base_swa": 700.0},
        ),
    ),
    "gptneox": (Arch("GPTNeoXForCausalLM", _WIDE, _blocks, loads=False),),
    "mpt": (Arch("MptForCausalLM", {"d_model": 48, "n_heads": 6, "n_layers": 2, "vocab_size": 96}, loads=False),),
    "gemma": (Arch("GemmaForCausalLM", _SIZED, _add_one, loads=False),),
    "phi2": (Arch("PhiForCausalLM", _WIDE, loads=False),),
    "olmo": (Arch("OlmoForCausalLM", _TEXT, _rotary, loads=False),),
    "olmo2": (Arch("Olmo2ForCausalLM", _TEXT, loads=False),),
    "granite": (Arch("GraniteForCausalLM", _TEXT, _rotary, loads=False),),
    "smollm3": (Arch("SmolLM3ForCausalLM", _FOUR, _rotary, loads=False),),
    "command-r": (
        Arch("CohereForCausalLM", _TEXT, loads=False),
        Arch("CohereForCausalLM", {**_TEXT, "use_qk_norm": True}, loads=False),
    ),
    "cohere2": (
        Arch("Cohere2ForCausalLM", _FOUR, loads=False),
        Arch(
            "Cohere2ForCausalLM",
            {**_FOUR, "layer_types": ["sliding_attention", "full_attention"] * 2},
            loads=False,
            metadata={"attention.sliding_window_pattern": 2},
        ),
    ),
    "starcoder": (Arch("GPTBigCodeForCausalLM", _GPT, loads=False, metadata={"attention.head_count_kv": 1}),),
}

# What the files of an architecture leave out, because the code that reads them knows it: config key → value. The source
# is `load_arch_hparams` in llama.cpp's src/models, and the initial values of src/llama-hparams.h. A model with other
# values cannot be converted, or its file states them.
LOCAL_BASE = 10000.0  # rope_freq_base_train_swa of llama-hparams.h
_TWO_BASES = {"sliding_attention": {"rope_theta": LOCAL_BASE}, "full_attention": {"rope_theta": 10000.0}}
OMITTED: dict[str, dict[str, Any]] = {
    "gemma3": {  # gemma3.cpp: set_swa_pattern(6)
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "rope_parameters": _TWO_BASES,
    },
    "modern-bert": {  # modern-bert.cpp: set_swa_pattern(3, dense_first)
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "dense_first": True,
        "rope_parameters": _TWO_BASES,
    },
    # cohere2.cpp: set_swa_pattern(4)
    "cohere2": {"layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},  # smollm3.cpp: n_no_rope_layer_step = 4
    # The config.json of openai/gpt-oss-20b and -120b. ggml rounds the ends of the ramp, the trained model does not.
    "gpt-oss": {"rope_scaling": {"truncate": False}},
}

# Architectures that transformers' loader knows and that cannot be compared: status and reason.
UNPROVED = {
    "mamba": ("none", "a state-space model"),
    "deci": ("unproven", "transformers has no class for it"),
    "gemma4": ("unproven", "layers of two head sizes that share keys; transformers' loader is told one size only"),
}

KINDS = tuple(f"gguf:{name}" for name in (*ARCHS, *UNPROVED))  # as model types, in attngeo's spelling
