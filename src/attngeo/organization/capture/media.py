"""Images and sounds as arrays, or one line saying why they are none."""

from __future__ import annotations

import os
import struct
import warnings
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import InputError
from attngeo.live.load import Live

RATE = 16_000  # samples a second, where nothing says otherwise: what speech models are trained on


def is_sound_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins like a WAV file or is named like a sound."""
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        head = b""
    return head[8:12] == b"WAVE" or Path(path).suffix.lower() in (".wav", ".mp3", ".flac", ".ogg", ".m4a")


def image_of(source: Any) -> Any:
    """A PIL image in RGB from a path, a PIL image or an array [height, width, 3] of 0 … 255."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(source, Image.Image):
        return source.convert("RGB")
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim not in (2, 3) or 0 in source.shape:
            raise InputError(f"image: expected uint8 [height, width, 3], got {source.dtype} {source.shape}")
        return Image.fromarray(source).convert("RGB")
    try:
        with Image.open(source) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise InputError(f"{source}: not an image, or one cut short") from None


def pixels_of(image: Any, live: Live) -> dict[str, Any]:
    """Model inputs of an image: by the model's own processor, else resized and scaled to −1 … 1."""
    import torch
    from PIL import Image

    if live.image_processor is not None:
        try:
            return dict(live.image_processor(images=image, return_tensors="pt"))
        except Exception as error:
            raise InputError(f"{live.name}: its image processor cannot read this image ({error})") from error
    config = getattr(live.model.config, "vision_config", None) or live.model.config
    size = getattr(config, "image_size", None)
    if size is None:
        raise InputError(f"{live.name}: no image processor beside the model and no image_size in its config")
    height, width = size if isinstance(size, list | tuple) else (size, size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    image = image.convert("L" if getattr(config, "num_channels", 3) == 1 else "RGB")
    pixels = np.asarray(image, np.float32).reshape(height, width, -1).transpose(2, 0, 1) / 127.5 - 1  # [C, H, W]
    return {"pixel_values": torch.from_numpy(pixels)[None]}


def sound_of(source: Any, rate: int | None, wanted: int) -> NDArray[np.float32]:
    """A waveform [samples] at `wanted` samples a second, from a WAV file or an array at `rate`."""
    if isinstance(source, str | os.PathLike):
        rate, wave = read_sound(source)
    else:
        wave = np.asarray(source)
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "sound"
    if wave.dtype.kind in "iu":  # 8-bit samples are stored from 0 to 255, wider ones around 0
        middle = 128 if wave.dtype.kind == "u" else 0
        wave = (wave.astype(np.float64) - middle) / (np.iinfo(wave.dtype).max - middle)
    if wave.ndim == 2:
        wave = wave.mean(1)  # [samples, channels]
    if wave.ndim != 1 or wave.size == 0 or wave.dtype.kind != "f" or not np.isfinite(wave).all():
        raise InputError(f"{name}: expected a sound of finite samples, got {wave.dtype} of shape {wave.shape}")
    rate = rate or wanted
    if rate != wanted:
        from scipy.signal import resample_poly

        common = gcd(rate, wanted)
        wave = resample_poly(wave, wanted // common, rate // common)
    return np.asarray(wave, np.float32)


def read_sound(path: str | os.PathLike[str]) -> tuple[int, Any]:
    """Samples a second and the samples of a WAV file as they are stored."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rate, wave = wavfile.read(path)
        if not any("premature" in str(one.message) for one in said):  # else: cut short; other chunks are skipped
            return int(rate), wave
    except FileNotFoundError:
        raise InputError(f"{os.fspath(path)}: no such file") from None
    except (ValueError, OSError, EOFError, KeyError, ZeroDivisionError, struct.error):
        pass
    raise InputError(f"{os.fspath(path)}: not a WAV sound, or one cut short")


def features_of(source: Any, live: Live, rate: int | None, truncate: bool) -> dict[str, Any]:
    """Model inputs of a sound: by the model's own feature extractor, else the waveform at mean 0 and variance 1."""
    import torch

    extractor = live.sound_processor
    wanted = int(getattr(extractor, "sampling_rate", None) or getattr(live.model.config, "sampling_rate", None) or RATE)
    wave = sound_of(source, rate, wanted)
    if extractor is None:
        if getattr(live.model.config, "conv_kernel", None) is None:
            raise InputError(f"{live.name}: no feature extractor beside the model; give processor=")
        return {"input_values": torch.from_numpy((wave - wave.mean()) / np.sqrt(wave.var() + 1e-7))[None]}
    longest = getattr(extractor, "n_samples", None)
    if longest and len(wave) > longest and not truncate:
        raise InputError(
            f"sound: {len(wave) / wanted:.1f} s, the model hears {longest / wanted:.0f} s; "
            "cut it off with truncate=True (--truncate)"
        )
    masked = {"return_attention_mask": True} if longest else {}  # padded to a fixed length: say where it ends
    try:
        return dict(extractor(wave, sampling_rate=wanted, return_tensors="pt", **masked))
    except Exception as error:
        raise InputError(f"{live.name}: its feature extractor cannot read this sound ({error})") from error
