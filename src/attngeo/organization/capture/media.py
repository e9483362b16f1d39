"""Read images and sounds, and turn them into the tensors that a model's forward takes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import InputError
from attngeo.live.load import LoadedModel

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage
    from torch import Tensor

Sound = str | os.PathLike[str] | NDArray[Any] | Sequence[float]  # a WAV file or a waveform

DEFAULT_SAMPLING_RATE = 16_000  # samples per second if nothing else is stated; speech models are trained on it


def is_sound_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file starts like a WAV file or has the extension of a sound file."""
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        head = b""
    return head[8:12] == b"WAVE" or Path(path).suffix.lower() in (".wav", ".mp3", ".flac", ".ogg", ".m4a")


def read_image(source: str | os.PathLike[str] | PILImage | NDArray[np.uint8]) -> PILImage:
    """Return an RGB image from a path, a PIL image or an array [height, width, 3] with values 0 … 255."""
    from PIL import Image

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
    except Exception:  # Pillow raises errors of many classes for a damaged file
        raise InputError(f"{source}: not an image, or an incomplete one") from None


def pixel_values(image: PILImage, loaded: LoadedModel) -> dict[str, Tensor]:
    """Return the model's arguments for an image: from its own processor, otherwise resized and scaled to −1 … 1."""
    import torch
    from PIL import Image

    if loaded.image_processor is not None:
        try:
            return dict(loaded.image_processor(images=image, return_tensors="pt"))
        except Exception as error:
            raise InputError(f"{loaded.name}: its image processor cannot read this image ({error})") from error
    config = getattr(loaded.model.config, "vision_config", None) or loaded.model.config
    size = getattr(config, "image_size", None)
    if size is None:
        raise InputError(
            f"{loaded.name}: no image processor was found with the model, and its config has no image_size"
        )
    height, width = size if isinstance(size, list | tuple) else (size, size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    image = image.convert("L" if getattr(config, "num_channels", 3) == 1 else "RGB")
    pixels = np.asarray(image, np.float32).reshape(height, width, -1).transpose(2, 0, 1) / 127.5 - 1  # [C, H, W]
    return {"pixel_values": torch.from_numpy(pixels)[None]}


def sound_features(source: Sound, loaded: LoadedModel, rate: int | None, truncate: bool) -> dict[str, Tensor]:
    """Return the model's arguments for a sound: from its feature extractor, otherwise the standardised waveform."""
    import torch

    extractor, config = loaded.feature_extractor, loaded.model.config
    sampling_rate = int(
        getattr(extractor, "sampling_rate", None) or getattr(config, "sampling_rate", None) or DEFAULT_SAMPLING_RATE
    )
    wave = waveform(source, rate, sampling_rate)  # [samples]
    if extractor is None:
        if getattr(config, "conv_kernel", None) is None:
            ids = "" if isinstance(source, str | os.PathLike) else ', or token ids as {"input_ids": ids}'
            why = "no feature extractor was found with the model, so it cannot read a sound"
            raise InputError(f"{loaded.name}: {why}; pass one with processor={ids}")
        return {"input_values": torch.from_numpy((wave - wave.mean()) / np.sqrt(wave.var() + 1e-7))[None]}
    longest = getattr(extractor, "n_samples", None)
    if longest and len(wave) > longest and not truncate:
        raise InputError(
            f"sound: {len(wave) / sampling_rate:.1f} s, but the model reads at most {longest / sampling_rate:.0f} s; "
            "truncate the sound with truncate=True (--truncate)"
        )
    # Extractors that pad to a fixed length must say where the sound ends.
    options = {"return_attention_mask": True} if longest else {}
    try:
        return dict(extractor(wave, sampling_rate=sampling_rate, return_tensors="pt", **options))
    except Exception as error:
        raise InputError(f"{loaded.name}: its feature extractor cannot read this sound ({error})") from error


def waveform(source: Sound, rate: int | None, sampling_rate: int) -> NDArray[np.float32]:
    """Return a waveform [samples] at `sampling_rate`, from a WAV file or an array sampled at `rate`."""
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        rate, wave = read_sound(source)
    else:
        name, wave = "sound", np.asarray(source)
    if wave.dtype.kind in "iu":  # 8-bit samples are stored from 0 to 255, wider ones around 0
        middle = 128 if wave.dtype.kind == "u" else 0
        wave = (wave.astype(np.float64) - middle) / (np.iinfo(wave.dtype).max - middle)
    if wave.ndim == 2:
        wave = wave.mean(1)  # [samples, channels] → [samples]
    if wave.ndim != 1 or wave.size == 0 or wave.dtype.kind != "f" or not np.isfinite(wave).all():
        raise InputError(f"{name}: expected a sound of finite samples, got {wave.dtype} of shape {wave.shape}")
    rate = rate or sampling_rate
    if rate != sampling_rate:
        from scipy.signal import resample_poly

        common = gcd(rate, sampling_rate)
        wave = resample_poly(wave, sampling_rate // common, rate // common)
    return np.asarray(wave, np.float32)


def read_sound(path: str | os.PathLike[str]) -> tuple[int, NDArray[Any]]:
    """Return the sampling rate and the stored samples of a WAV file."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rate, wave = wavfile.read(path)
        # scipy warns about an incomplete file and about chunks that it skips; only the former is an error.
        if not any("premature" in str(warning.message) for warning in caught):
            return int(rate), wave
    except FileNotFoundError:
        raise InputError(f"{os.fspath(path)}: no such file") from None
    except Exception:  # scipy raises errors of many classes for a damaged file
        pass
    raise InputError(f"{os.fspath(path)}: not a WAV file, or an incomplete one")
