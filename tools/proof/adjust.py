"""What the defaults of a few model types leave open, or set to something that cannot be built here."""

from __future__ import annotations

from typing import Any

from transformers import ResNetConfig


def _resnet(config: Any) -> Any:
    """A small ResNet in place of the default backbone, which would be fetched from timm."""
    backbone = ResNetConfig(embedding_size=16, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"])
    values = config.to_dict()
    for key in ("backbone", "use_timm_backbone", "backbone_kwargs", "use_pretrained_backbone", "backbone_config"):
        values.pop(key, None)
    return type(config)(**values | {"backbone_config": backbone, "use_timm_backbone": False, "backbone": None})


def _set(**values: Any) -> Any:
    def adjust(config: Any) -> None:
        for key, value in values.items():
            setattr(config, key, value)

    return adjust


ADJUST: dict[str, Any] = {
    "detr": _resnet,
    "conditional_detr": _resnet,
    "dab-detr": _resnet,
    "deformable_detr": _resnet,
    "table-transformer": _resnet,
    "time_series_transformer": _set(prediction_length=8, context_length=8),
    "autoformer": _set(prediction_length=8, context_length=8),
    "informer": _set(prediction_length=8, context_length=8),
    "esm": _set(vocab_size=33, mask_token_id=32, pad_token_id=1),
    "big_bird": _set(attention_type="original_full"),
    "bigbird_pegasus": _set(attention_type="original_full"),
}
