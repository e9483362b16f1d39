"""Which models have fixed sinusoidal positions in their hidden dimensions.

The sinusoids are the same in every model of that width. They tell the hidden dimensions apart before training begins,
so models trained from different initial values share a basis, and a permuted basis is no null for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Model types of transformers that add fixed sinusoids to the hidden states of at least one stack.
FIXED = frozenset(
    [
        "autoformer",
        "canary",
        "cohere_asr",
        "conditional_detr",
        "ctrl",
        "dab-detr",
        "deformable_detr",
        "detr",
        "fsmt",
        "grounding-dino",
        "informer",
        "kosmos-2",
        "kosmos_2_text_model",
        "m2m_100",
        "marian",
        "mask2former",
        "maskformer",
        "mm-grounding-dino",
        "musicgen",
        "musicgen_decoder",
        "musicgen_melody",
        "musicgen_melody_decoder",
        "nllb-moe",
        "omdet-turbo",
        "oneformer",
        "patchtsmixer",
        "patchtst",
        "pegasus",
        "pegasus_x",
        "rt_detr",
        "rt_detr_v2",
        "seamless_m4t",
        "seamless_m4t_v2",
        "speech_to_text",
        "speecht5",
        "table-transformer",
        "time_series_transformer",
        "timesfm",
        "videomae",
        "vit_mae",
        "whisper",
        "xglm",
    ]
)
# Config switches of types that can have either kind.
SWITCHES = {
    "sinusoidal_pos_embds": True,
    "sinusoidal_embeddings": True,
    "use_learned_position_embeddings": False,
    "position_embedding_type": "sine",
    "is_native": True,  # AIMv2
}


def has_fixed_positions(config: Mapping[str, Any] | None) -> bool:
    """Return whether a model with this config, or a part of it, adds fixed sinusoids to its hidden states.

    >>> has_fixed_positions({"model_type": "whisper"}), has_fixed_positions({"model_type": "bert"})
    (True, False)
    """
    return any(
        part.get("model_type") in FIXED or any(part.get(key) == value for key, value in SWITCHES.items())
        for part in _parts(config or {})
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _parts(value)
