"""Tiny configs and inputs: transformers for images."""

from __future__ import annotations

from typing import Any

import torch

from tools.proof.diffusers.example import Examples, grid, ids, ones, times, x

IMAGES = Examples()
_HEADS: dict[str, Any] = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 2}
_JOINT: dict[str, Any] = {**_HEADS, "in_channels": 4, "joint_attention_dim": 24, "axes_dims_rope": (4, 4, 8)}
_PATCHES: dict[str, Any] = {**_HEADS, "in_channels": 4, "sample_size": 8, "patch_size": 2}


def _streams(**more: Any) -> dict[str, Any]:
    """Return the inputs of models with 16 image tokens and 5 text tokens."""
    return {
        "hidden_states": x(2, 16, 4),
        "encoder_hidden_states": x(2, 5, 24),
        "timestep": times() / 1000,
        "img_ids": grid(16),
        "txt_ids": grid(5),
        **more,
    }


def _image(width: int = 24, **more: Any) -> dict[str, Any]:
    """Return the inputs of models that read an image of 8×8 latents and 5 text tokens."""
    return {"hidden_states": x(2, 4, 8, 8), "encoder_hidden_states": x(2, 5, width), "timestep": times(), **more}


IMAGES.add(
    "DiTTransformer2DModel",
    {**_PATCHES, "num_embeds_ada_norm": 10},
    lambda: {"hidden_states": x(2, 4, 8, 8), "timestep": times().long(), "class_labels": ids(10, 2)},
)
IMAGES.add(
    "PixArtTransformer2DModel",
    {**_PATCHES, "cross_attention_dim": 48, "caption_channels": 24},
    lambda: _image(added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
)
_SD3 = {**_PATCHES, "joint_attention_dim": 24, "caption_projection_dim": 48, "pooled_projection_dim": 16}
IMAGES.add("SD3Transformer2DModel", {**_SD3, "pos_embed_max_size": 8}, lambda: _image(pooled_projections=x(2, 16)))
IMAGES.add(
    "SD3Transformer2DModel",
    {**_SD3, "pos_embed_max_size": 8, "qk_norm": "rms_norm", "dual_attention_layers": (0,)},
    lambda: _image(pooled_projections=x(2, 16)),
)
IMAGES.add(
    "SD3ControlNetModel",
    {**_SD3, "pos_embed_max_size": 8},
    lambda: _image(pooled_projections=x(2, 16), controlnet_cond=x(2, 4, 8, 8)),
)
IMAGES.add(
    "FluxTransformer2DModel",
    {**_JOINT, "num_single_layers": 2, "pooled_projection_dim": 16},
    lambda: _streams(pooled_projections=x(2, 16)),
)
IMAGES.add(
    "FluxControlNetModel",
    {**_JOINT, "num_single_layers": 1, "pooled_projection_dim": 16, "axes_dims_rope": [4, 4, 8]},
    lambda: _streams(pooled_projections=x(2, 16), controlnet_cond=x(2, 16, 4)),
)
IMAGES.add(
    "Flux2Transformer2DModel",
    {**_JOINT, "num_single_layers": 2, "timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4)},
    lambda: _streams(img_ids=grid(16, 4), txt_ids=grid(5, 4), guidance=torch.ones(2)),
)
IMAGES.add(
    "ChromaTransformer2DModel",
    {
        **_JOINT,
        "num_single_layers": 2,
        "approximator_num_channels": 8,
        "approximator_hidden_dim": 16,
        "approximator_layers": 1,
    },
    lambda: _streams(attention_mask=ones(2, 21)),
)
IMAGES.add("OvisImageTransformer2DModel", {**_JOINT, "num_single_layers": 2}, _streams)
IMAGES.add("LongCatImageTransformer2DModel", {**_JOINT, "num_single_layers": 2, "pooled_projection_dim": 16}, _streams)
IMAGES.add(
    "BriaTransformer2DModel",
    {**_JOINT, "num_single_layers": 2, "axes_dims_rope": [4, 4, 8]},
    _streams,
)
IMAGES.add(
    "BriaFiboTransformer2DModel",
    {**_JOINT, "num_single_layers": 2, "axes_dims_rope": [4, 4, 8], "text_encoder_dim": 24},
    lambda: _streams(text_encoder_layers=[x(2, 5, 24) for _ in range(4)]),
)
IMAGES.add(
    "QwenImageTransformer2DModel",
    {**_JOINT, "in_channels": 16, "out_channels": 4},
    lambda: {
        "hidden_states": x(2, 16, 16),
        "encoder_hidden_states": x(2, 5, 24),
        "encoder_hidden_states_mask": ones(2, 5),
        "timestep": times() / 1000,
        "img_shapes": [[(1, 4, 4)]] * 2,
    },
)
IMAGES.add(
    "QwenImageControlNetModel",
    {**_JOINT, "in_channels": 16, "out_channels": 4},
    lambda: {
        "hidden_states": x(2, 16, 16),
        "controlnet_cond": x(2, 16, 16),
        "encoder_hidden_states": x(2, 5, 24),
        "encoder_hidden_states_mask": ones(2, 5),
        "timestep": times() / 1000,
        "img_shapes": [[(1, 4, 4)]] * 2,
    },
)
IMAGES.add(
    "AuraFlowTransformer2DModel",
    {
        "sample_size": 8,
        "num_mmdit_layers": 2,
        "num_single_dit_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 3,
        "joint_attention_dim": 24,
        "caption_projection_dim": 48,
        "pos_embed_max_size": 64,
    },
    lambda: _image(timestep=times() / 1000),
)
_SIZES = {"original_size": (64, 64), "target_size": (64, 64), "crop_coords": (0, 0)}
_COGVIEW = {
    **_PATCHES,
    "out_channels": 4,
    "text_embed_dim": 24,
    "time_embed_dim": 16,
    "condition_dim": 8,
    "pos_embed_max_size": 8,
}
IMAGES.add(
    "CogView3PlusTransformer2DModel CogView4Transformer2DModel",
    {**_COGVIEW},
    lambda: _image(**{key: torch.tensor([value] * 2).float() for key, value in _SIZES.items()}),
)
IMAGES.add(
    "HunyuanDiT2DModel",
    {
        **_PATCHES,
        "hidden_size": 48,
        "cross_attention_dim": 24,
        "cross_attention_dim_t5": 32,
        "pooled_projection_dim": 16,
        "text_len": 5,
        "text_len_t5": 6,
        "use_style_cond_and_image_meta_size": False,
    },
    lambda: _image(
        text_embedding_mask=ones(2, 5), encoder_hidden_states_t5=x(2, 6, 32), text_embedding_mask_t5=ones(2, 6)
    ),
)
_LUMINA = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2, "num_attention_heads": 6}
IMAGES.add(
    "LuminaNextDiT2DModel",
    {
        **_LUMINA,
        "hidden_size": 48,
        "num_kv_heads": 3,
        "cross_attention_dim": 24,
        "multiple_of": 16,
    },
    lambda: _image(
        encoder_mask=ones(2, 5),
        image_rotary_emb=torch.ones(4, 4, 4, dtype=torch.complex64),
        cross_attention_kwargs={},
    ),
)
IMAGES.add(
    "Lumina2Transformer2DModel",
    {
        **_LUMINA,
        "hidden_size": 96,
        "num_refiner_layers": 1,
        "num_kv_heads": 2,
        "multiple_of": 16,
        "axes_dim_rope": (4, 4, 8),
        "axes_lens": (32, 32, 32),
        "cap_feat_dim": 24,
    },
    lambda: _image(encoder_attention_mask=ones(2, 5)),
)
IMAGES.add(
    "PriorTransformer",
    {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 2, "embedding_dim": 24, "num_embeddings": 5},
    lambda: {
        "hidden_states": x(2, 24),
        "timestep": times(),
        "proj_embedding": x(2, 24),
        "encoder_hidden_states": x(2, 5, 24),
    },
)
IMAGES.add(
    "HunyuanImageTransformer2DModel",
    {
        **_HEADS,
        "in_channels": 4,
        "out_channels": 4,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "text_embed_dim": 24,
        "rope_axes_dim": (8, 8),
    },
    lambda: _image(encoder_attention_mask=ones(2, 5)),
)
IMAGES.add(
    "ZImageTransformer2DModel",
    {
        "in_channels": 4,
        "dim": 48,
        "n_layers": 2,
        "n_refiner_layers": 1,
        "n_heads": 3,
        "n_kv_heads": 3,
        "cap_feat_dim": 24,
        "axes_dims": [4, 4, 8],
        "axes_lens": [128, 64, 64],
    },
    lambda: {"x": [x(4, 1, 8, 8)] * 2, "t": times() / 1000, "cap_feats": [x(5, 24), x(5, 24)]},
)
IMAGES.add(
    "HiDreamImageTransformer2DModel",
    {
        **_HEADS,
        "patch_size": 2,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "caption_channels": [24, 20],
        "text_emb_dim": 16,
        "axes_dims_rope": (4, 4, 8),
        "max_resolution": (8, 8),
        "llama_layers": (0, 1),
    },
    lambda: {
        "hidden_states": x(2, 4, 8, 8),
        "timesteps": times(),
        "encoder_hidden_states_t5": x(2, 5, 24),
        "encoder_hidden_states_llama3": x(2, 2, 5, 20),
        "pooled_embeds": x(2, 16),
    },
)
IMAGES.add(
    "ErnieImageTransformer2DModel",
    {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_layers": 2,
        "ffn_hidden_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "text_in_dim": 24,
        "rope_axes_dim": (4, 4, 8),
    },
    lambda: {
        "hidden_states": x(2, 4, 4, 4),
        "timestep": times(),
        "text_bth": x(2, 5, 24),
        "text_lens": torch.tensor([5, 5]),
    },
)
IMAGES.add(
    "OmniGenTransformer2DModel",
    {
        "in_channels": 4,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 32,
        "num_layers": 2,
        "pad_token_id": 0,
        "vocab_size": 30,
        "time_step_dim": 8,
        "pos_embed_max_size": 8,
        "rope_scaling": {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
    },
    lambda: {
        "hidden_states": x(2, 4, 8, 8),
        "timestep": times(),
        "input_ids": ids(30, 2, 5),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": torch.ones(2, 22, 22),
        "position_ids": torch.arange(22)[None].repeat(2, 1),
    },
)
