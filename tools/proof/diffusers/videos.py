"""Tiny configs and inputs: transformers for videos and sound."""

from __future__ import annotations

from typing import Any

import torch

from tools.proof.diffusers.example import Examples, ones, times, x

VIDEOS = Examples()
_HEADS: dict[str, Any] = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 2}
_WAN: dict[str, Any] = {
    **_HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 24,
    "freq_dim": 16,
    "ffn_dim": 32,
    "rope_max_seq_len": 16,
}
_HUNYUAN: dict[str, Any] = {
    **_HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "num_refiner_layers": 1,
    "text_embed_dim": 24,
    "rope_axes_dim": (4, 4, 8),
}


def _video(frames: int = 3, **more: Any) -> dict[str, Any]:
    """Return the inputs of models that read a video [channels, frames, height, width] and 5 text tokens."""
    return {"hidden_states": x(2, 4, frames, 8, 8), "timestep": times(), "encoder_hidden_states": x(2, 5, 24), **more}


VIDEOS.add("WanTransformer3DModel SkyReelsV2Transformer3DModel", _WAN, _video)
VIDEOS.add(
    "WanTransformer3DModel SkyReelsV2Transformer3DModel ChronoEditTransformer3DModel",
    {**_WAN, "image_dim": 20, "added_kv_proj_dim": 48},
    # these classes take the last 512 tokens of the condition as the text
    lambda: _video(encoder_hidden_states=x(2, 512, 24), encoder_hidden_states_image=x(2, 6, 20)),
)
VIDEOS.add(
    "WanVACETransformer3DModel",
    {**_WAN, "vace_layers": [0, 1], "vace_in_channels": 8},
    lambda: _video(control_hidden_states=x(2, 8, 3, 8, 8)),
)
VIDEOS.add(
    "AnyFlowTransformer3DModel",
    _WAN,
    lambda: _video(hidden_states=x(2, 3, 4, 8, 8), timestep=x(2, 3), r_timestep=x(2, 3)),
)
VIDEOS.add(
    "CogVideoXTransformer3DModel ConsisIDTransformer3DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 16,
        "text_embed_dim": 24,
        "sample_width": 8,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": 5,
    },
    lambda: {"hidden_states": x(2, 3, 4, 8, 8), "encoder_hidden_states": x(2, 5, 24), "timestep": times()},
)
VIDEOS.add(
    "HunyuanVideoTransformer3DModel",
    {**_HUNYUAN, "num_single_layers": 2, "pooled_projection_dim": 16},
    lambda: _video(
        encoder_attention_mask=ones(2, 5), pooled_projections=x(2, 16), guidance=torch.tensor([1000.0, 1000.0])
    ),
)
VIDEOS.add(
    "HunyuanVideoFramepackTransformer3DModel",
    {
        **_HUNYUAN,
        "num_single_layers": 2,
        "pooled_projection_dim": 16,
        "guidance_embeds": False,
        "has_image_proj": True,
        "image_proj_dim": 12,
        "has_clean_x_embedder": True,
    },
    lambda: _video(
        encoder_attention_mask=ones(2, 5),
        pooled_projections=x(2, 16),
        image_embeds=x(2, 7, 12),
        indices_latents=torch.arange(3),
        latents_clean=x(2, 4, 2, 8, 8),
        indices_latents_clean=torch.arange(2),
        latents_history_2x=x(2, 4, 2, 8, 8),
        indices_latents_history_2x=torch.arange(2),
        latents_history_4x=x(2, 4, 4, 8, 8),
        indices_latents_history_4x=torch.arange(4),
    ),
)
VIDEOS.add(
    "HunyuanVideo15Transformer3DModel",
    {**_HUNYUAN, "text_embed_2_dim": 20, "image_embed_dim": 12, "target_size": 16, "task_type": "t2v"},
    lambda: _video(
        encoder_attention_mask=ones(2, 5),
        encoder_hidden_states_2=x(2, 6, 20),
        encoder_attention_mask_2=ones(2, 6),
        image_embeds=torch.zeros(2, 7, 12),
    ),
)
VIDEOS.add(
    "AllegroTransformer3DModel",
    {
        **_HEADS,
        "cross_attention_dim": 72,
        "sample_height": 8,
        "sample_width": 8,
        "sample_frames": 3,
        "caption_channels": 24,
        "attention_head_dim": 24,
    },
    lambda: _video(
        image_rotary_emb=(
            tuple((torch.ones(48, 8), torch.zeros(48, 8)) for _ in range(3)),
            tuple(torch.zeros(48, dtype=torch.long)[None] for _ in range(3)),
        ),
        attention_mask=torch.ones(2, 3, 8, 8),
        encoder_attention_mask=torch.ones(2, 1, 5),
    ),
)
VIDEOS.add(
    "LatteTransformer3DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "cross_attention_dim": 48,
        "sample_size": 8,
        "patch_size": 2,
        "num_embeds_ada_norm": 10,
        "norm_type": "ada_norm_single",
        "norm_elementwise_affine": False,
        "caption_channels": 24,
        "video_length": 3,
        "attention_bias": True,
    },
    _video,
)
VIDEOS.add(
    "LTXVideoTransformer3DModel",
    {**_HEADS, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 48, "caption_channels": 24},
    lambda: {
        "hidden_states": x(2, 12, 4),
        "encoder_hidden_states": x(2, 5, 24),
        "timestep": times(),
        "encoder_attention_mask": ones(2, 5),
        "num_frames": 3,
        "height": 2,
        "width": 2,
    },
)
VIDEOS.add(
    "MochiTransformer3DModel",
    {
        **_HEADS,
        "pooled_projection_dim": 16,
        "in_channels": 4,
        "text_embed_dim": 24,
        "time_embed_dim": 4,
        "max_sequence_length": 5,
    },
    lambda: {  # the items of a batch attend one by one
        "hidden_states": x(1, 4, 3, 8, 8),
        "timestep": times(1),
        "encoder_hidden_states": x(1, 5, 24),
        "encoder_attention_mask": ones(1, 5),
    },
)
VIDEOS.add(
    "CosmosTransformer3DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "out_channels": 4,
        "text_embed_dim": 24,
        "adaln_lora_dim": 4,
        "max_size": (4, 16, 16),
        "concat_padding_mask": False,  # resizing the mask needs torchvision
    },
    lambda: _video(fps=30),
)
VIDEOS.add(
    "EasyAnimateTransformer3DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "out_channels": 4,
        "patch_size": 2,
        "sample_width": 8,
        "sample_height": 8,
        "mmdit_layers": 1,
        "time_embed_dim": 16,
        "text_embed_dim": 24,
    },
    _video,
)
VIDEOS.add(
    "StableAudioDiTModel",
    {
        **_HEADS,
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "num_key_value_attention_heads": 2,
        "cross_attention_dim": 32,
        "time_proj_dim": 8,
        "global_states_input_dim": 16,
        "cross_attention_input_dim": 24,
    },
    lambda: {
        "hidden_states": x(2, 4, 8),
        "timestep": times() / 1000,
        "encoder_hidden_states": x(2, 5, 24),
        "global_hidden_states": x(2, 1, 16),
    },
)
VIDEOS.add(
    "AceStepTransformer1DModel",
    {
        "hidden_size": 48,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "in_channels": 12,
        "audio_acoustic_hidden_dim": 4,
        "encoder_hidden_size": 24,
    },
    lambda: {
        "hidden_states": x(2, 8, 4),
        "timestep": times() / 1000,
        "timestep_r": times() / 1000,
        "encoder_hidden_states": x(2, 5, 24),
        "context_latents": x(2, 8, 8),
    },
)
VIDEOS.add(
    "Kandinsky5Transformer3DModel",
    {
        "in_visual_dim": 4,
        "in_text_dim": 24,
        "in_text_dim2": 16,
        "time_dim": 16,
        "out_visual_dim": 4,
        "model_dim": 48,
        "ff_dim": 32,
        "num_text_blocks": 1,
        "num_visual_blocks": 2,
        "axes_dims": (4, 4, 8),
    },
    lambda: {
        "hidden_states": x(1, 3, 8, 8, 4),
        "encoder_hidden_states": x(1, 5, 24),
        "timestep": times(1),
        "pooled_projections": x(1, 16),
        "visual_rope_pos": [torch.arange(3), torch.arange(4), torch.arange(4)],
        "text_rope_pos": torch.arange(5),
    },
)
VIDEOS.add(
    "MotifVideoTransformer3DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "out_channels": 4,
        "num_single_layers": 2,
        "text_embed_dim": 24,
        "rope_axes_dim": (4, 4, 8),
    },
    lambda: _video(encoder_attention_mask=ones(2, 5)),
)
