"""Build a tiny model with random weights of any transformers model type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from tools.proof.config_adjustments import ADJUSTMENTS
from tools.proof.product_recorder import NAME, recorded_products
from tools.proof.tiny_config import fit_sections, shrink, sub_configs

# (layers, divisor of widths, largest number of parameters), tried in this order; layers 0: the default config
LADDER = ((2, 8, 200e6), (2, 4, 100e6), (2, 2, 100e6), (2, 1, 200e6), (8, 8, 200e6), (0, 0, 300e6))


class CannotBuild(Exception):
    """None of the configs tried gave a model; the message is the first exception."""


# Types whose mapped class is a part that cannot be built from the type's own config.
_WHOLE_MODELS = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}


def config_and_model_class(model_type: str) -> tuple[Any, Any]:
    """Return the config class and the model class of a model type."""
    config_class = CONFIG_MAPPING[model_type]
    if model_type in _WHOLE_MODELS:
        return config_class, getattr(transformers, _WHOLE_MODELS[model_type])
    model_class = MODEL_MAPPING[config_class]
    return config_class, model_class[0] if isinstance(model_class, (list, tuple)) else model_class


def tiny_config(model_type: str, layers: int, factor: int) -> PreTrainedConfig:
    """Return the default config, shrunk to `layers` layers and widths / `factor`; layers 0: not shrunk."""
    config = config_and_model_class(model_type)[0]()
    if layers:
        shrink(config, layers=layers, factor=factor)
    if model_type in ADJUSTMENTS:
        config = ADJUSTMENTS[model_type](config) or config
    if layers:
        fit_sections(config)
    return config


def tiny_configs(model_type: str, most: float) -> Iterator[PreTrainedConfig]:
    """Yield configs of the type whose models have at most `most` parameters, in the order of the ladder."""
    model_class = config_and_model_class(model_type)[1]
    for layers, factor, largest in LADDER:
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(tiny_config(model_type, layers, factor)).parameters())
            config = tiny_config(model_type, layers, factor)  # anew, because a constructor may change its config
            plain_experts(config)
        except Exception:  # no model of this size can be built
            continue
        if size <= min(largest, most):
            yield config


def tiny_models(model_type: str) -> Iterator[PreTrainedModel]:
    """Yield models of the type, the smallest first; raise CannotBuild after the last."""
    model_class = config_and_model_class(model_type)[1]
    problem: Exception | None = None
    for layers, factor, largest in LADDER:
        try:
            config = tiny_config(model_type, layers, factor)
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(config).parameters())
            if size > largest:
                problem = problem or CannotBuild(f"{size / 1e6:.0f} M parameters at {layers} layers, widths / {factor}")
                continue
            with recorded_products():  # positions are zero in tables that the constructor makes, too
                model = build_model(model_class, tiny_config(model_type, layers, factor))
        except Exception as error:
            problem = problem or error
            continue
        yield model
    raise CannotBuild(f"{type(problem).__name__}: {str(problem).strip()[:200]}")


def build_model(model_class: Any, config: PreTrainedConfig) -> Any:
    """Return a model with random weights whose attention is recorded, or eager where that cannot be."""
    torch.manual_seed(0)
    plain_experts(config)
    for implementation in (NAME, "eager"):
        try:
            return model_class._from_config(config, attn_implementation=implementation, dtype=torch.float32)
        except (ValueError, ImportError, KeyError) as error:
            problem = error
    raise problem


def plain_experts(config: PreTrainedConfig) -> None:
    """Use the eager experts: grouped matrix products need aligned widths, which tiny models do not have."""
    config._experts_implementation_internal = "eager"
    for sub in sub_configs(config).values():
        plain_experts(sub)
