"""Build a tiny random model of any transformers type."""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from tools.proof.adjust import ADJUST
from tools.proof.listen import NAME, listening
from tools.proof.tiny import shrink, sub_configs

# (layers, width factor, most parameters); layers 0: as it comes
LADDER = ((2, 8, 200e6), (2, 4, 100e6), (2, 2, 100e6), (2, 1, 200e6), (8, 8, 200e6), (0, 0, 300e6))


class CannotBuild(Exception):
    """No configuration tried gave a model; the message is the last exception."""


# Types whose mapped class is only a part that cannot be built from the type's own config.
_WHOLE = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}


def classes(model_type: str) -> tuple[Any, Any]:
    config_class = CONFIG_MAPPING[model_type]
    model_class = getattr(transformers, _WHOLE[model_type]) if model_type in _WHOLE else MODEL_MAPPING[config_class]
    return config_class, model_class[0] if isinstance(model_class, (list, tuple)) else model_class


def configuration(model_type: str, layers: int, factor: int) -> PreTrainedConfig:
    config = classes(model_type)[0]()
    if layers:
        shrink(config, layers=layers, factor=factor)
    if model_type in ADJUST:
        config = ADJUST[model_type](config) or config
    return config


def candidates(model_type: str) -> Any:
    """Models of decreasing shrinkage; the first that works out is good enough."""
    model_class = classes(model_type)[1]
    problem: Exception | None = None
    for layers, factor, largest in LADDER:
        try:
            config = configuration(model_type, layers, factor)
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(config).parameters())
            if size > largest:
                problem = problem or CannotBuild(f"{size / 1e6:.0f} M parameters at {layers} layers, widths / {factor}")
                continue
            model = _build(model_class, configuration(model_type, layers, factor))
        except Exception as error:
            problem = problem or error
            continue
        yield model
    raise CannotBuild(f"{type(problem).__name__}: {str(problem).strip()[:200]}")


def _build(model_class: Any, config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    plain_experts(config)
    with listening():  # position tables made in the constructor stand at zero too
        for implementation in (NAME, "eager"):
            try:
                return model_class._from_config(config, attn_implementation=implementation, dtype=torch.float32)
            except (ValueError, ImportError, KeyError) as error:
                problem = error
        raise problem


def plain_experts(config: PreTrainedConfig) -> None:
    """Grouped matrix products want aligned widths, tiny models have none."""
    config._experts_implementation_internal = "eager"
    for sub in sub_configs(config).values():
        plain_experts(sub)


def as_json(config: PreTrainedConfig) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False))
