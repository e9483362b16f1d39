"""Which models have fixed sinusoidal positions in their hidden dimensions.

The sinusoids are the same in every model of that width. They tell the hidden dimensions apart before training begins,
so models trained from different initial values share a basis, and a permuted basis is no null for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Model types of transformers whose queries or keys read fixed values in at least one stack, as small live models show
# (`python -m tools.prove_positions`).
PROVED = frozenset(
    [
        "autoformer",
        "canary",
        "conditional_detr",
        "ctrl",
        "d_fine",
        "deimv2",
        "detr",
        "fsmt",
        "informer",
        "kosmos-2",
        "kosmos-2.5",
        "m2m_100",
        "marian",
        "maskformer",
        "moss_transcribe_diarize_audio",
        "musicgen",
        "musicgen_melody",
        "nllb-moe",
        "patchtst",
        "pegasus",
        "pegasus_x",
        "pp_doclayout_v3",
        "pp_doclayout_v4",
        "qwen2_audio_encoder",
        "rt_detr",
        "rt_detr_v2",
        "sam3",
        "sam3_lite_text",
        "seamless_m4t",
        "seamless_m4t_v2",
        "speech_to_text",
        "table-transformer",
        "time_series_transformer",
        "tipsv2",
        "tipsv2_text_model",
        "videomae",
        "videoprism",
        "vit_mae",
        "voxtral_encoder",
        "whisper",
        "xglm",
    ]
)
# Types whose code adds fixed sinusoids to hidden states, which the live model does not show: they are multiplied by
# learned scales, read by deformable attention only, loaded from the checkpoint, or part of a model that was not run.
READ_FROM_CODE = frozenset(
    [
        "audioflamingo3_encoder",
        "cohere_asr",
        "dab-detr",
        "deformable_detr",
        "grounding-dino",
        "kosmos_2_text_model",
        "mask2former",
        "mm-grounding-dino",
        "musicgen_decoder",
        "musicgen_melody_decoder",
        "omdet-turbo",
        "oneformer",
        "patchtsmixer",
        "qwen2_5_omni_audio_encoder",
        "qwen3_asr_encoder",
        "qwen3_omni_moe_audio_encoder",
        "speecht5",
        "timesfm",
    ]
)
FIXED = PROVED | READ_FROM_CODE
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
