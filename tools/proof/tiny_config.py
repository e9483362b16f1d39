"""Shrink the config of any transformers model type, so that its model can be built and run in a second."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

# Names of config attributes, by what they count or measure.
_LAYERS = re.compile(
    r"^(n_layers?|depth|.*(num|n)_.*(layers|blocks)|.*(encoder|decoder|hidden|text|vision|prediction)_layers|"
    r"num_(hidden_)?layers|layers|num_blocks)$"
)
_LAYER_KINDS = re.compile(r"^(layer_types|layers_block_type|block_types|attention_types)$")
_STAGES = re.compile(r"^(depths|num_blocks|layer_depths|blocks_per_stage)$")
_VOCABULARY_SIZE = 1200
_EXPERTS = re.compile(r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_moe_experts)$")
_ACTIVE_EXPERTS = re.compile(
    r"^(num_experts_per_tok(en)?|moe_topk|moe_k|top_k|num_selected_experts|n_group|topk_group|num_expert_group)$"
)
_VOCABULARY = re.compile(r"vocab_size$")
_WIDTHS = re.compile(
    r"^(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|emb_dim|dim|n_inner|d_ff|ffn_dim|width|"
    r".*intermediate_size|.*ffn_dim|.*hidden_size|.*hidden_dim|projection_dim|.*embed_dim|.*_dim_feedforward|"
    r"lru_width|conv_dim|qformer_hidden|decoder_hidden_size|encoder_hidden_size|inner_dim|out_hidden_size|"
    r"output_dim|text_embed_dim|d_inner|d_embed|.*d_model|model_dim|mlp_dim|depth_decoder.*size)$"
)


def sub_configs(config: PreTrainedConfig) -> dict[str, PreTrainedConfig]:
    """Return the configs inside `config`, by attribute name."""
    return {name: value for name, value in vars(config).items() if isinstance(value, PreTrainedConfig)}


def shrink(config: PreTrainedConfig, *, layers: int, factor: int) -> None:
    """Reduce the depth to `layers`, divide widths by `factor` and shrink inputs, in place, in every sub-config too."""
    for sub in sub_configs(config).values():
        shrink(sub, layers=layers, factor=factor)
    if getattr(config, "is_heterogeneous", False):  # layers of different sizes, which refuse to tell the common ones
        config.allow_global_per_layer_attribute_access = True
    derived_head_size = _has_derived_head_size(config)
    depth = getattr(config, "num_hidden_layers", None)
    kept = _kept_layers(config, depth, layers)
    patch = getattr(config, "patch_size", None)
    for name, value in list(vars(config).items()):
        small = _reduced(name, value, len(kept) or layers, factor)
        if isinstance(value, list) and depth and len(value) == depth > len(kept) > 0:
            small = [value[i] for i in kept]
        elif name == "image_size" and factor > 1:
            small = _image_size(value, patch)
        elif name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= _VOCABULARY_SIZE:
            small = 3 if getattr(config, "vocab_size", 0) > 3 else value
        if small is not value:
            try:
                setattr(config, name, small)
            except Exception:  # a validated attribute may refuse the value; the model may still build
                continue
    if derived_head_size and "head_dim" in vars(config):
        config.head_dim = config.hidden_size // config.num_attention_heads
    _make_heads_divisible(config)


def _make_heads_divisible(config: PreTrainedConfig) -> None:
    """Lower the number of heads until two axes can share the dimensions of one head, where positions have two axes."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or parameters.get("rope_type") != "axial" or vars(config).get("head_dim"):
        return
    width = next((getattr(config, name) for name in ("embed_dim", "hidden_size") if name in vars(config)), None)
    key = next((name for name in ("num_heads", "num_attention_heads") if name in vars(config)), None)
    if width is not None and key is not None:
        fitting = (count for count in range(min(getattr(config, key), width // 16), 1, -1) if width % (4 * count) == 0)
        setattr(config, key, next(fitting, getattr(config, key)))


def fit_sections(config: PreTrainedConfig) -> None:
    """Divide the rotary pairs of a smaller head among the three position axes of a vision-language model, in place."""
    for sub in sub_configs(config).values():
        fit_sections(sub)
    parameters = getattr(config, "rope_parameters", None)
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    derived = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    size = vars(config).get("head_dim") or derived
    if not isinstance(parameters, dict) or not isinstance(size, int) or not _has_sections(config):
        return
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for part in nested or [parameters]:
        pairs = int(size * (part.get("partial_rotary_factor") or 1.0)) // 2
        part["mrope_section"] = [pairs // 3, pairs // 3, pairs - 2 * (pairs // 3)]


def _has_sections(config: PreTrainedConfig) -> bool:
    """Return whether models with this config divide their rotary pairs among axes; some do so without a config key."""
    if "mrope_section" in str(getattr(config, "rope_parameters", None)):
        return True
    path = Path(inspect.getfile(type(config)))
    source = path.with_name(path.name.replace("configuration_", "modeling_"))
    is_text = getattr(config, "vocab_size", None) is not None
    return is_text and source.is_file() and "mrope_section" in source.read_text("utf-8")


def _has_derived_head_size(config: PreTrainedConfig) -> bool:
    """Return whether the head size is width / heads, so that it has to shrink with the width."""
    width, heads, size = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    return isinstance(width, int) and isinstance(heads, int) and heads > 0 and size == width // heads


def _kept_layers(config: PreTrainedConfig, depth: int | None, layers: int) -> list[int]:
    """Return the layers to keep: the first of each kind, then the next ones, up to `layers` in all."""
    kinds = next(
        (v for k, v in vars(config).items() if _LAYER_KINDS.search(k) and isinstance(v, list) and len(v) == depth), None
    )
    if not depth or kinds is None:
        return list(range(min(depth or 0, layers)))
    named = [str(kind) for kind in kinds]
    first = {named.index(kind) for kind in set(named)}
    rest = [i for i in range(depth) if i not in first]
    return sorted([*first, *rest[: max(0, layers - len(first))]])


def _image_size(value: Any, patch: Any) -> Any:
    """Return an image size of four patches, or 64 pixels; sizes up to 96 are kept."""
    if isinstance(value, (list, tuple)):
        return type(value)(_image_size(v, patch) for v in value)
    if not isinstance(value, int) or value <= 96:
        return value
    return 4 * patch if isinstance(patch, int) and value % patch == 0 else 64


def _reduced(name: str, value: Any, layers: int, factor: int) -> Any:
    """Return the reduced value of an attribute; `value` itself where it stays."""
    if isinstance(value, bool) or not isinstance(value, (int, list)):
        return value
    if isinstance(value, list):
        stages = _STAGES.search(name) and value and all(isinstance(v, int) for v in value)
        return [min(v, 2) for v in value] if stages else value
    if _EXPERTS.match(name):
        return min(value, 4)
    if _ACTIVE_EXPERTS.match(name):
        return min(value, 1 if "group" in name else 2)
    if _VOCABULARY.search(name):
        return min(value, _VOCABULARY_SIZE)
    if _LAYERS.match(name) and name != "num_feat_extract_layers":
        return min(value, layers)
    if name == "max_source_positions" and factor > 1:
        return min(value, 48)
    if _WIDTHS.match(name) and value % factor == 0 and value // factor >= 16:
        return value // factor
    return value
