"""Made-up inputs for the forward of any model, from its signature and its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 12


def _first(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first of these attributes that has a value."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    return default


def _height_width(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        edge: int = value.get("shortest_edge", 64)
        return int(value.get("height", edge)), int(value.get("width", edge))
    if isinstance(value, (list, tuple)):
        return int(value[-2] if len(value) > 1 else value[0]), int(value[-1])
    return int(value), int(value)


def _width(config: Any) -> int:
    value = _first(config, "hidden_size", "d_model", "embed_dim", default=64)
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def token_ids(config: Any, length: int = TOKENS) -> Tensor:
    """Return token ids [1, length]."""
    vocabulary = int(
        _first(config, "vocab_size", default=None)
        or _first(getattr(config, "text_config", None), "vocab_size", default=100)
    )
    generator = torch.Generator().manual_seed(1)
    return torch.randint(min(5, vocabulary - 2), max(vocabulary - 1, 7), (1, length), generator=generator) % vocabulary


def image(config: Any) -> Tensor:
    """Return one image [1, channels, height, width]."""
    size = _first(config, "image_size", "img_size", "input_size", default=None)
    patch = _first(config, "patch_size", default=None)
    height, width = _height_width(size) if size is not None else (64, 64)
    if size is None and isinstance(patch, int):
        height = width = 4 * patch
    channels = int(_first(config, "num_channels", "in_channels", "in_chans", default=3))
    return torch.randn(1, channels, min(height, 512), min(width, 512))


def example_inputs(model: nn.Module, config: Any) -> Iterator[dict[str, Any]]:
    """Yield keyword arguments to try on `model.forward`, the most likely first."""
    parameters = inspect.signature(model.forward).parameters
    names = set(parameters)
    text = getattr(config, "text_config", None) or config
    extra: dict[str, Any] = {}
    for switch in ("use_cache", "output_attentions"):
        if switch in names:
            extra[switch] = False
    if "decoder_input_ids" in names:
        extra["decoder_input_ids"] = token_ids(getattr(config, "decoder", None) or config, 8)
    elif "decoder_input_values" in names:
        extra["decoder_input_values"] = torch.randn(1, 8, int(_first(config, "num_mel_bins", default=80)))
    vision = getattr(config, "vision_config", None) or config
    mels = int(
        _first(
            config,
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_dim",
            "n_mels",
            "feat_dim",
            "feature_projection_input_dim",
            default=80,
        )
    )
    if "input_ids" in names and "pixel_values" in names:
        yield {"input_ids": token_ids(text), "pixel_values": image(vision), **extra}
    if "input_ids" in names and "bbox" in names:
        yield {"input_ids": token_ids(text), "bbox": torch.zeros(1, TOKENS, 4, dtype=torch.long), **extra}
    if "input_ids" in names:
        yield {"input_ids": token_ids(text), **extra}
        yield {"input_ids": token_ids(text, 64), **extra}
        yield {"input_ids": token_ids(text), "attention_mask": torch.ones(1, TOKENS, dtype=torch.long), **extra}
        books = int(_first(config, "num_codebooks", "num_channels", default=1))
        yield {"input_ids": token_ids(text).unsqueeze(-1).expand(-1, -1, books).contiguous(), **extra}
        yield {"input_ids": token_ids(text).expand(books, -1).contiguous(), **extra}
        yield {"input_ids": token_ids(text).unsqueeze(-1).expand(-1, -1, books + 1).contiguous(), **extra}
    if "inputs_embeds" in names and "input_ids" not in names:
        yield {"inputs_embeds": torch.randn(1, TOKENS, _width(config)), **extra}
    if "pixel_values" in names:
        picture = image(vision)
        yield {"pixel_values": picture, **extra}
        frames = int(_first(config, "num_frames", "frames_per_clip", default=2))
        yield {"pixel_values": picture.unsqueeze(1).expand(-1, frames, -1, -1, -1).contiguous(), **extra}
    for name in ("pixel_values_videos", "video"):
        if name in names:
            frames = int(_first(config, "num_frames", "frames_per_clip", default=4))
            yield {name: image(vision).unsqueeze(1).expand(-1, frames, -1, -1, -1).contiguous(), **extra}
    if "input_values" in names:
        yield {"input_values": torch.randn(1, 16000), **extra}
        yield {"input_values": torch.randn(1, 1, 16000), **extra}
        length = int(_first(config, "max_length", default=1024))
        yield {"input_values": torch.randn(1, length, mels), **extra}
        yield {"input_values": token_ids(config), **extra}
        yield {"input_values": torch.randn(1, TOKENS, _width(config)), **extra}
    if "input_features" in names:
        frames = 2 * int(_first(config, "max_source_positions", default=100))
        mask = {"attention_mask": torch.ones(1, 64, dtype=torch.long)} if "attention_mask" in names else {}
        yield {"input_features": torch.randn(1, mels, frames), **extra}
        yield {"input_features": torch.randn(1, 64, mels), **extra}
        yield {"input_features": torch.randn(1, 64, mels), **mask, **extra}
        yield {"input_features": torch.randn(1, 1, 1001, mels), "is_longer": torch.zeros(1, 1, dtype=torch.bool)}
        yield {"input_features": torch.randn(1, mels, 64), **extra}
    if "past_time_features" in names:
        lags = max(_first(config, "lags_sequence", default=[0]))
        past, future = int(config.context_length) + lags, int(config.prediction_length)
        features = int(config.num_time_features)
        yield {
            "past_values": torch.randn(1, past),
            "past_time_features": torch.randn(1, past, features),
            "past_observed_mask": torch.ones(1, past),
            "future_values": torch.randn(1, future),
            "future_time_features": torch.randn(1, future, features),
            **extra,
        }
    elif "past_values" in names:
        length = int(_first(config, "context_length", "prediction_length", default=32))
        channels = int(_first(config, "num_input_channels", "input_size", default=1))
        yield {"past_values": torch.randn(1, length, channels), **extra}
        yield {"past_values": torch.randn(1, length), **extra}
    if "pixel_position_ids" in names:
        patch = int(_first(config, "patch_size", default=16))
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij"), -1)  # [4, 6, 2]
        pixels = torch.randn(1, 24, 3 * patch**2)
        yield {"pixel_values": pixels, "pixel_position_ids": places.reshape(1, 24, 2), **extra}
    if "grid_thw" in names:
        merged = {"merge_sizes": torch.tensor([2])} if "merge_sizes" in names else {}
        yield from _patches("pixel_values" if "pixel_values" in names else "hidden_states", config, extra | merged)
    if "hidden_states" in names:
        yield {"hidden_states": torch.randn(1, TOKENS, _width(config)), **extra}


def _patches(name: str, config: Any, extra: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one image of 4×6 patches, and the numbers of its frames, rows and columns of patches."""
    patch, frames = (int(_first(config, key, default=1)) for key in ("patch_size", "temporal_patch_size"))
    channels = int(_first(config, "in_channels", "in_chans", "num_channels", default=3))
    grid = {"grid_thw": torch.tensor([[1, 4, 6]])}
    area = channels * patch**2
    for shape in ((frames * area,), (area,), (2 * area,), (channels, patch, patch)):
        yield {name: torch.randn(24, *shape), **grid, **extra}
    yield {name: torch.randn(1, 24, channels, patch, patch), **grid, **extra}


def spread_positions(count: int) -> Tensor:
    """Return positions [1, count], from 0 on, with small and large distances between them."""
    steps = torch.arange(count)
    return (steps + (300 * (steps / max(count - 1, 1)) ** 2).round().long()).unsqueeze(0)


def accepts_positions(model: nn.Module) -> bool:
    """Return whether the positions of tokens can be given to the model."""
    names = inspect.signature(model.forward).parameters
    return "position_ids" in names and ("input_ids" in names or "inputs_embeds" in names)


def with_positions(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return `inputs` with the positions of `spread_positions`, where the model accepts positions of its tokens."""
    tokens = inputs.get("input_ids", inputs.get("inputs_embeds"))
    if tokens is None or tokens.shape[0] != 1 or not accepts_positions(model):
        return inputs
    return {**inputs, "position_ids": spread_positions(tokens.shape[1])}


def attention_inputs(module: nn.Module, width: int, key_width: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield keyword arguments for an attention module called by itself: token vectors, no mask, positions zero."""
    parameters = inspect.signature(module.forward).parameters
    tokens = torch.randn(1, 16, width)
    other = torch.randn(1, 9, key_width or width)
    filled: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in (
            "hidden_states",
            "x",
            "hidden_state",
            "input",
            "inputs",
            "query",
            "queries",
            "query_states",
            "embeddings",
        ):
            filled[name] = tokens
        elif name in (
            "encoder_hidden_states",
            "key_value_states",
            "cross_attention_states",
            "context",
            "key",
            "value",
            "keys",
            "values",
        ):
            filled[name] = other if name not in ("value", "values") else filled.get("key", filled.get("keys", other))
        elif parameter.default is parameter.empty:
            filled[name] = None
    if not any(value is tokens for value in filled.values()) and filled:
        filled[next(iter(filled))] = tokens
    size = getattr(module, "head_dim", None) or getattr(module, "attention_head_size", None) or 8
    for rotary in (size, size // 2, None):
        attempt = dict(filled)
        for name in ("position_embeddings", "rotary_pos_emb", "position_embedding"):
            if name in parameters and rotary:
                attempt[name] = (torch.ones(1, 16, rotary), torch.zeros(1, 16, rotary))
        if "cu_seqlens" in parameters:
            attempt["cu_seqlens"] = torch.tensor([0, 16], dtype=torch.int32)
            two = {k: v[0] if v is tokens else v for k, v in attempt.items()}
            if "position_embeddings" in two and rotary:
                two["position_embeddings"] = (torch.ones(16, rotary), torch.zeros(16, rotary))
            yield two
        if "position_ids" in parameters:
            attempt["position_ids"] = torch.zeros(1, 16, dtype=torch.long)
        if "cache_position" in parameters:
            attempt["cache_position"] = torch.arange(16)
        yield attempt
        if "position_embeddings" in attempt and rotary:
            yield {**attempt, "position_embeddings": (torch.ones(16, rotary), torch.zeros(16, rotary))}
    yield {k: v for k, v in filled.items() if v is not None}
    square = {k: v.reshape(1, 4, 4, width) if v is tokens else v for k, v in filled.items()}
    yield square
