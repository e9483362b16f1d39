"""Tiny configs and inputs: UNets, controlnets of UNets and autoencoders."""

from __future__ import annotations

from typing import Any

from tools.proof.diffusers.example import Examples, ids, ones, times, x

UNETS = Examples()
_SMALL: dict[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_CROSS: dict[str, Any] = {
    **_SMALL,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 24,
}


def _text(width: int = 24) -> dict[str, Any]:
    return {"sample": x(2, 4, 8, 8), "timestep": times(), "encoder_hidden_states": x(2, 5, width)}


# Stable Diffusion 1: one number for all blocks; 2: one per block; XL: several blocks of attention per layer
UNETS.add("UNet2DConditionModel", {**_CROSS, "attention_head_dim": 2}, _text)
UNETS.add(
    "UNet2DConditionModel",
    {
        **_CROSS,
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        "attention_head_dim": (2, 4),
        "transformer_layers_per_block": (1, 2),
        "use_linear_projection": True,
    },
    _text,
)
# the upscaler of Stable Diffusion: the first attention of a block reads the text, of the same width, in some blocks
UNETS.add(
    "UNet2DConditionModel",
    {
        **_CROSS,
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        "attention_head_dim": 2,
        "only_cross_attention": (True, False),
        "cross_attention_dim": 32,
    },
    lambda: _text(32),
)
# unCLIP and Kandinsky: keys of the text beside those of the image
UNETS.add(
    "UNet2DConditionModel",
    {
        **_CROSS,
        "down_block_types": ("SimpleCrossAttnDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "SimpleCrossAttnUpBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "attention_head_dim": (8, 16),
    },
    _text,
)
UNETS.add(
    "UNet2DModel",
    {
        **_SMALL,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 8,
    },
    lambda: {"sample": x(2, 3, 8, 8), "timestep": times()},
)
UNETS.add(
    "UNet2DModel",
    {
        **_SMALL,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": None,
    },
    lambda: {"sample": x(2, 3, 8, 8), "timestep": times()},
)
UNETS.add(
    "ControlNetModel",
    {
        **_SMALL,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "cross_attention_dim": 24,
        "attention_head_dim": (2, 4),
        "conditioning_embedding_out_channels": (8, 16),
    },
    lambda: {**_text(), "controlnet_cond": x(2, 3, 16, 16)},
)
UNETS.add(
    "AudioLDM2UNet2DConditionModel",
    {**_CROSS, "cross_attention_dim": ((None, 16, 24), (None, 16, 24)), "attention_head_dim": (2, 4)},
    lambda: {
        "sample": x(2, 4, 8, 8),
        "timestep": times(),
        "encoder_hidden_states": x(2, 5, 16),
        "encoder_hidden_states_1": x(2, 7, 24),
    },
)
UNETS.add(
    "UNet3DConditionModel",
    {
        **_SMALL,
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        "cross_attention_dim": 24,
        "attention_head_dim": 8,
    },
    lambda: {"sample": x(2, 4, 3, 8, 8), "timestep": times(), "encoder_hidden_states": x(2, 5, 24)},
)
UNETS.add(
    "I2VGenXLUNet",
    {
        **_SMALL,
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        "cross_attention_dim": 24,
        "attention_head_dim": 8,
    },
    lambda: {
        "sample": x(2, 4, 3, 16, 16),
        "timestep": times(),
        "fps": times(),
        "image_latents": x(2, 4, 3, 16, 16),
        "image_embeddings": x(2, 24),
        "encoder_hidden_states": x(2, 5, 24),
    },
)
UNETS.add(
    "UNetMotionModel",
    {
        **_SMALL,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        "cross_attention_dim": 24,
        "num_attention_heads": 2,
        "motion_num_attention_heads": 4,
    },
    lambda: {"sample": x(2, 4, 3, 8, 8), "timestep": times(), "encoder_hidden_states": x(6, 5, 24)},
)
UNETS.add(
    "UNetSpatioTemporalConditionModel",
    {
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        "cross_attention_dim": 24,
        "num_attention_heads": (2, 4),
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 24,
    },
    lambda: {
        "sample": x(2, 3, 8, 8, 8),
        "timestep": times(),
        "encoder_hidden_states": x(2, 1, 24),
        "added_time_ids": x(2, 3),
    },
)
UNETS.add(
    "Kandinsky3UNet",
    {
        "block_out_channels": (16, 32, 32, 48),
        "layers_per_block": 2,
        "groups": 8,
        "attention_head_dim": 8,
        "time_embedding_dim": 16,
        "cross_attention_dim": 24,
        "encoder_hid_dim": 20,
    },
    lambda: {
        "sample": x(2, 4, 8, 8),
        "timestep": times(),
        "encoder_hidden_states": x(2, 5, 20),
        "encoder_attention_mask": ones(2, 5).float(),
        "return_dict": False,
    },
)
UNETS.add(
    "StableCascadeUNet",
    {
        "in_channels": 4,
        "out_channels": 4,
        "conditioning_dim": 32,
        "block_out_channels": (32, 64),
        "num_attention_heads": (2, 4),
        "down_num_layers_per_block": (1, 1),
        "up_num_layers_per_block": (1, 1),
        "clip_text_pooled_in_channels": 16,
        "clip_text_in_channels": 16,
        "clip_image_in_channels": 16,
        "timestep_ratio_embedding_dim": 16,
    },
    lambda: {
        "sample": x(2, 4, 8, 8),
        "timestep_ratio": times() / 1000,
        "clip_text_pooled": x(2, 1, 16),
        "clip_text": x(2, 5, 16),
        "clip_img": x(2, 1, 16),
    },
)
UNETS.add(
    "UVit2DModel",
    {
        "hidden_size": 48,
        "cond_embed_dim": 16,
        "micro_cond_encode_dim": 2,
        "micro_cond_embed_dim": 10,
        "encoder_hidden_size": 24,
        "vocab_size": 32,
        "codebook_size": 24,
        "in_channels": 32,
        "block_out_channels": 32,
        "num_res_blocks": 1,
        "block_num_heads": 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "sample_size": 4,
    },
    lambda: {
        "input_ids": ids(24, 2, 4, 4),
        "encoder_hidden_states": x(2, 5, 24),
        "pooled_text_emb": x(2, 16),
        "micro_conds": x(2, 5),
    },
)
for _name in ("AutoencoderKL", "VQModel"):
    UNETS.add(
        _name,
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
            "norm_num_groups": 8,
        },
        lambda: {"sample": x(1, 3, 16, 16)},
    )
