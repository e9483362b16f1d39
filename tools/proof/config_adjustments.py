"""Changes to the default configs of a few model types, which leave values open or cannot be built offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import ResNetConfig


def _resnet(config: Any) -> Any:
    """Return the config with a small ResNet in place of the default backbone, which needs timm."""
    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )
    values = config.to_dict()
    for key in ("backbone", "use_timm_backbone", "backbone_kwargs", "use_pretrained_backbone", "backbone_config"):
        values.pop(key, None)
    return type(config)(**values | {"backbone_config": backbone, "use_timm_backbone": False, "backbone": None})


def _set(**values: Any) -> Callable[[Any], None]:
    """Return a function that sets these values."""

    def adjust(config: Any) -> None:
        for key, value in values.items():
            setattr(config, key, value)

    return adjust


def _head_size(config: Any) -> None:
    """Set the head size, which these configs require but leave empty."""
    for part in (config, getattr(config, "text_config", None)):
        if part is not None and getattr(part, "head_dim", 0) is None:
            part.head_dim = part.hidden_size // part.num_attention_heads


def _mamba_heads(config: Any) -> None:
    """Set the number of Mamba heads that fits the reduced width."""
    config.mamba_n_heads = config.mamba_expand * config.hidden_size // config.mamba_d_head


def _granite(config: Any) -> None:
    _mamba_heads(config)
    config.layer_types = ["linear_attention", "full_attention"]


def _bamba(config: Any) -> None:
    _mamba_heads(config)
    config.attn_layer_indices = [1]


ADJUSTMENTS: dict[str, Callable[[Any], Any]] = {
    **{kind: _resnet for kind in ("detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer")},
    **{
        kind: _head_size
        for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl", "hunyuan_vl_text", "ministral")
    },
    "granitemoehybrid": _granite,
    **{
        kind: _set(prediction_length=8, context_length=8)
        for kind in ("time_series_transformer", "autoformer", "informer")
    },
    "jamba": _set(attn_layer_period=2, attn_layer_offset=1),
    "bamba": _bamba,
    "nemotron": _set(num_key_value_heads=8),
    "stablelm": _set(num_attention_heads=8, num_key_value_heads=8),
    "moonshine": _set(
        encoder_num_attention_heads=2,
        encoder_num_key_value_heads=2,
        decoder_num_attention_heads=2,
        decoder_num_key_value_heads=2,
    ),
    "glm4v_moe": lambda config: _set(head_dim=32)(config.text_config),
    "mistral4": _set(head_dim=128),  # that of the rotary part, not of the width
    "dinov3_vit": _set(num_attention_heads=2),  # several pairs on each axis
    "gpt_neox": _set(num_attention_heads=8),  # an even number of dimensions rotates
    **{kind: _set(head_dim=32) for kind in ("glm4_moe", "glm4v_moe_text")},  # several pairs rotate
    **{kind: _set(no_rope_layers=[1, 0]) for kind in ("smollm3", "llama4_text")},
    **{kind: lambda config: _set(no_rope_layers=[1, 0])(config.text_config) for kind in ("llama4", "mistral_large4")},
    **{kind: _set(rotary_dim=8) for kind in ("gptj", "codegen")},
    "lfm2_moe": _set(layer_types=["conv", "full_attention"]),
    "t5gemma2": lambda config: _set(mm_tokens_per_image=4)(config.encoder),  # of the 16 patches of a tiny image
    "esm": _set(vocab_size=33, mask_token_id=32, pad_token_id=1),
    "big_bird": _set(attention_type="original_full"),
    "bigbird_pegasus": _set(attention_type="original_full"),
    "gpt_neo": _set(attention_types=[[["global", "local"], 1]], attention_layers=["global", "local"]),
    "deepseek_v2": _set(topk_group=1, n_group=1, num_experts_per_tok=2, topk_method="greedy"),
    "deepseek_v3": _set(num_attention_heads=16, num_key_value_heads=16, q_lora_rank=192, kv_lora_rank=64),
}
