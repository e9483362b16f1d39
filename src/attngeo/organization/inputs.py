"""Turn texts, images, sounds and prepared tensors into arguments of a model's forward, with labels of the positions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, forward_arguments, type_label
from attngeo.live.load import LoadedModel, quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor


# Strings, so that the definitions do not import torch.
Sound: TypeAlias = "str | os.PathLike[str] | NDArray[Any] | Sequence[float]"  # a WAV file or a waveform
SingleInput: TypeAlias = "Sound | Image | Mapping[str, Tensor]"  # or a text, an image, prepared tensors

# Modalities are named after the argument that takes them.
TEXT, IMAGE, SOUND, DECODER_IDS = "input_ids", "pixel_values", "input_values", "decoder_input_ids"
_MAIN_ARGUMENTS = (TEXT, IMAGE, SOUND, "input_features")
_DEFAULT_STACKS = {TEXT: "text", IMAGE: "vision", SOUND: "audio"}
_UNLIMITED = 10**8  # tokenizers without a maximum length state an absurd one
_SAMPLING_RATE = 16_000  # samples per second if nothing else is stated; speech models are trained on it
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")  # where configs state the longest text


@dataclass(frozen=True, eq=False)
class ModelInput:
    """The arguments of one forward pass, a batch of one, and what is known about its positions."""

    tensors: Mapping[str, Tensor]
    required: frozenset[str]  # arguments that the model must accept; the others are passed only if it does
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "encoder" or "decoder" → tokens
    grid: tuple[int, int] | None = None  # rows and columns of image patches


def split_inputs(inputs: Any) -> tuple[list[Any], bool]:
    """Return the single inputs in `inputs`, and whether it was a single one; batched mappings are split into rows."""
    if isinstance(inputs, Mapping):
        rows = _batch_rows(inputs)
        return rows, len(rows) == 1
    if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
        if not inputs:
            raise InputError("no inputs: expected a text, an image, a sound or a mapping of tensors")
        if not all(isinstance(number, float | int) for number in inputs):  # a list of numbers is a single waveform
            return [row for one in inputs for row in split_inputs(one)[0]], False
    return [inputs], True


def _batch_rows(batch: Mapping[str, Any]) -> list[Any]:
    import torch

    tensors = {name: torch.as_tensor(value) for name, value in batch.items() if value is not None}
    main = next((tensors[name] for name in (*_MAIN_ARGUMENTS, *tensors) if name in tensors), None)
    if main is None or any(value.dim() == 0 for value in tensors.values()) or 0 in main.shape:
        raise InputError("inputs: expected a mapping of names to tensors with a batch axis, the main one not empty")
    for name in (TEXT, DECODER_IDS):
        if name in tensors and tensors[name].dim() < 2:
            shape = list(tensors[name].shape)
            raise InputError(f"inputs: {name} has the shape {shape}, expected [rows, tokens]")
    rows = main.shape[0]
    if rows == 1:
        return [tensors]
    return [
        {name: value[row : row + 1] if value.shape[0] == rows else value for name, value in tensors.items()}
        for row in range(rows)
    ]


def modality(single_input: Any, loaded: LoadedModel, stack: str | None) -> str:
    """Return TEXT, IMAGE or SOUND; a string is a text unless the model, or the requested stack, reads no text."""
    if isinstance(single_input, Mapping):
        return next((name for name in (TEXT, IMAGE) if name in single_input), SOUND)
    if isinstance(single_input, str) and _main_modality(loaded, stack) == TEXT:
        return TEXT
    if isinstance(single_input, str | os.PathLike):
        return SOUND if _main_modality(loaded, stack) == SOUND or is_sound_file(single_input) else IMAGE
    if hasattr(single_input, "convert") or (isinstance(single_input, np.ndarray) and single_input.ndim == 3):
        return IMAGE
    if hasattr(single_input, "shape") or (isinstance(single_input, Sequence) and not isinstance(single_input, bytes)):
        return SOUND
    raise InputError(f"{type(single_input).__name__}: expected a text, an image, a sound or a mapping of tensors")


def _main_modality(loaded: LoadedModel, stack: str | None) -> str:
    """Return what the requested stack reads, by its name; by default what the model reads."""
    if stack is not None and stack.startswith(("vision", "audio")):
        return IMAGE if stack.startswith("vision") else SOUND
    main = str(getattr(loaded.model, "main_input_name", TEXT))
    return main if main in (TEXT, IMAGE) else SOUND


def choose_stack(loaded: LoadedModel, stacks: Mapping[str, Stack], requested: str | None, reads: str) -> Stack:
    """Return the requested stack, the only stack, or the stack for this modality."""
    if requested is None and len(stacks) == 1:
        return next(iter(stacks.values()))
    name = _DEFAULT_STACKS[reads] if requested is None else requested
    if name not in stacks:
        available = ", ".join(stacks)
        if requested:
            problem = f"no stack {requested} to capture; it has {available}"
        else:
            problem = f"has the stacks {available}: choose one with stack= (--stack)"
        raise InputError(f"{type_label(loaded.model)}: {problem}")
    return stacks[name]


def prepare_input(
    single_input: Any,
    loaded: LoadedModel,
    stack: Stack,
    *,
    reads: str,
    target: str | None = None,
    truncate: bool = False,
    rate: int | None = None,
) -> ModelInput:
    """Return the arguments with which the model runs `stack` on one input.

    reads    its modality: TEXT, IMAGE or SOUND
    target   the text for the decoder of an encoder-decoder; by default the input text
    rate     the sampling rate of a waveform
    """
    if isinstance(single_input, Mapping):
        tensors = dict(single_input)
        required = set(tensors)
    else:
        if isinstance(single_input, str) and reads != TEXT:
            _check_file(single_input, loaded, reads)
        if reads == TEXT:
            tensors = _tokenize(single_input, loaded, truncate)
        elif reads == IMAGE:
            tensors = _pixel_values(read_image(single_input), loaded)
        else:
            tensors = _sound_features(single_input, loaded, rate, truncate)
        required = {next(name for name in (*_MAIN_ARGUMENTS, *tensors) if name in tensors)}
    needs_target = DECODER_IDS in forward_arguments(loaded.model) and (stack.cross or "decoder" in stack.name)
    has_target = any(name.startswith("decoder_input") for name in tensors)
    if target is not None and (has_target or not needs_target):
        why = "the inputs already contain decoder inputs" if needs_target else f"its {stack.name} reads no target"
        raise InputError(f"{type_label(loaded.model)}: target= (--target) was given, but {why}")
    if needs_target and not has_target:
        tensors[DECODER_IDS] = _decoder_ids(loaded, tensors, target, truncate)
        required.add(DECODER_IDS)
    sides = ((TEXT, "encoder"), (DECODER_IDS, "decoder"))
    tokens = {side: _tokens(tensors[name][0], loaded) for name, side in sides if name in tensors}
    return ModelInput(tensors, frozenset(required), tokens, _patch_grid(tensors, loaded))


def _check_file(path: str, loaded: LoadedModel, reads: str) -> None:
    """Raise InputError if a string for a model of images or sounds names no file: it may have been meant as a text."""
    if not os.path.isfile(path):
        what, option = ("images", "--image") if reads == IMAGE else ("sounds", "--audio")
        opening = path if len(path) <= 80 else f"{path[:79]}…"
        raise InputError(
            f"{loaded.name}: reads {what}, not texts, and there is no file {opening!r}; give the path of one ({option})"
        )


def _tokenize(text: str, loaded: LoadedModel, truncate: bool) -> dict[str, Tensor]:
    """Return the tokenizer's output for a text, special tokens included; raise if it is empty or too long."""
    if not text.strip():
        raise InputError("text: empty, expected at least one word")
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise InputError(f"{loaded.name}: no tokenizer was found with the model, a text cannot be read; "
                         "pass one with tokenizer=")  # fmt: skip
    limit = maximum_tokens(loaded)
    with quiet_transformers():
        tensors = dict(tokenizer(text, return_tensors="pt"))
        count = tensors[TEXT].shape[1]
        if limit is not None and count > limit:
            if not truncate:
                raise InputError(f"text: {count} tokens, but {loaded.name} reads at most {limit}; "
                                 "truncate the text with truncate=True (--truncate)")  # fmt: skip
            tensors = dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=limit))
    if count == 0:
        raise InputError("text: contains no token of this model's vocabulary")
    return tensors


def maximum_tokens(loaded: LoadedModel) -> int | None:
    """Return the length of the longest text the model reads: the smallest of the stated limits, None without one."""
    limits = [getattr(loaded.model.config.get_text_config(), name, None) for name in _LENGTHS]
    limits.append(getattr(loaded.tokenizer, "model_max_length", None))
    for path, module in loaded.model.named_modules():
        if path.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa's positions start after padding_idx
    return min((int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < _UNLIMITED), default=None)


def _decoder_ids(loaded: LoadedModel, tensors: Mapping[str, Tensor], target: str | None, truncate: bool) -> Tensor:
    """Return what the decoder reads, [1, N]: the target, shifted right behind the start token."""
    import torch

    if target is not None:
        ids = _tokenize(target, loaded, truncate)[TEXT]
    elif TEXT in tensors:
        ids = tensors[TEXT]
    else:
        raise InputError(f"{type_label(loaded.model)}: its decoder reads a text of its own; give target= (--target)")
    config = loaded.model.config
    configs = (config, getattr(loaded.model, "generation_config", None), config.get_text_config())
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    start = next((token for name in names for one in configs if (token := getattr(one, name, None)) is not None), 0)
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _tokens(ids: Tensor, loaded: LoadedModel) -> tuple[str, ...]:
    if ids.dim() != 1 or loaded.tokenizer is None:
        return ()
    return tuple(str(token) for token in loaded.tokenizer.convert_ids_to_tokens(ids.tolist()))


def _patch_grid(tensors: Mapping[str, Tensor], loaded: LoadedModel) -> tuple[int, int] | None:
    pixels = tensors.get(IMAGE)  # [1, C, H, W]
    config = getattr(loaded.model.config, "vision_config", None) or loaded.model.config
    patch = getattr(config, "patch_size", None)
    if pixels is None or pixels.dim() != 4 or patch is None:
        return None
    height, width = patch if isinstance(patch, list | tuple) else (patch, patch)
    return pixels.shape[2] // height, pixels.shape[3] // width


def position_labels(model_input: ModelInput, length: int, side: str) -> tuple[str, ...]:
    """Return a label for each position of an axis, padding included: tokens, patches as "row,column", or numbers.

    Positions before the patches are labelled [CLS], or [0], [1], … if there are several.
    """
    tokens = model_input.tokens.get(side, ())
    if len(tokens) == length:
        return tokens
    if model_input.grid is not None and side == "encoder":
        rows, columns = model_input.grid
        extra = length - rows * columns
        if 0 <= extra <= 16:
            before = ["[CLS]"] if extra == 1 else [f"[{position}]" for position in range(extra)]
            return (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    return tuple(map(str, range(length)))


def is_sound_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file starts like a WAV file or has the extension of a sound file."""
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        head = b""
    return head[8:12] == b"WAVE" or Path(path).suffix.lower() in (".wav", ".mp3", ".flac", ".ogg", ".m4a")


def read_image(source: str | os.PathLike[str] | Image | NDArray[np.uint8]) -> Image:
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


def _pixel_values(image: Image, loaded: LoadedModel) -> dict[str, Tensor]:
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


def _sound_features(source: Sound, loaded: LoadedModel, rate: int | None, truncate: bool) -> dict[str, Tensor]:
    """Return the model's arguments for a sound: from its feature extractor, otherwise the standardised waveform."""
    import torch

    extractor, config = loaded.feature_extractor, loaded.model.config
    stated = (getattr(one, "sampling_rate", None) for one in (extractor, config))
    sampling_rate = int(next(filter(None, stated), _SAMPLING_RATE))
    wave = _waveform(source, rate, sampling_rate)  # [samples]
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


def _waveform(source: Sound, rate: int | None, sampling_rate: int) -> NDArray[np.float32]:
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
