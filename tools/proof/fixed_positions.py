"""Types whose code adds fixed sinusoids to hidden states, which a small live model does not show.

They are multiplied by learned scales, read by deformable attention only, loaded from the checkpoint, or part of a model
that was not run. `tools.prove_positions` finds the other types with fixed positions.
"""

READ_FROM_CODE = [
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
