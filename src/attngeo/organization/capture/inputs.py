"""Texts, images, sounds and ready tensors as what a model's forward takes, with the names of their positions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, kind_of, parameters
from attngeo.live.load import Live, quiet
from attngeo.organization.capture.media import features_of, image_of, is_sound_file, pixels_of

TEXT, IMAGE, SOUND, DECODER = "input_ids", "pixel_values", "input_values", "decoder_input_ids"
MAIN = (TEXT, IMAGE, SOUND, "input_features")
_TOWERS = {TEXT: "text", IMAGE: "vision", SOUND: "audio"}
_BOUNDLESS = 10**8  # tokenizers that know no limit name an absurd one


@dataclass(frozen=True, eq=False)
class Feed:
    """Arguments of one run, a batch of one, and what is known of its positions."""

    tensors: Mapping[str, Any]
    needed: frozenset[str]  # what the model must take; the rest only if it wants to
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by name of the tensor of ids
    grid: tuple[int, int] | None = None  # rows and columns of patches


def listed(inputs: Any) -> tuple[list[Any], bool]:
    """The single inputs in `inputs`, and whether it was one: mappings of several rows are taken apart."""
    if isinstance(inputs, Mapping):
        rows = _rows(inputs)
        return rows, len(rows) == 1
    if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
        if not inputs:
            raise InputError("no inputs: expected a text, an image, a sound or a mapping of tensors")
        if not all(isinstance(number, float | int) for number in inputs):  # a list of numbers is one sound
            return [row for one in inputs for row in listed(one)[0]], False
    return [inputs], True


def _rows(batch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    import torch

    tensors = {name: torch.as_tensor(value) for name, value in batch.items() if value is not None}
    main = next((tensors[name] for name in (*MAIN, *tensors) if name in tensors), None)
    if main is None or any(value.dim() == 0 for value in tensors.values()) or 0 in main.shape:
        raise InputError("inputs: expected a mapping of names to tensors with a batch axis, the main one not empty")
    many = main.shape[0]
    if many == 1:
        return [tensors]
    return [
        {name: value[row : row + 1] if value.shape[0] == many else value for name, value in tensors.items()}
        for row in range(many)
    ]


def modality(one: Any, live: Live, stack: str | None) -> str:
    """TEXT, IMAGE or SOUND; a string is a text unless the model, or the stack asked for, reads none."""
    if isinstance(one, Mapping):
        return next((name for name in (TEXT, IMAGE) if name in one), SOUND)
    if isinstance(one, str) and _reads(live, stack) == TEXT:
        return TEXT
    if isinstance(one, str | os.PathLike):
        return SOUND if _reads(live, stack) == SOUND or is_sound_file(one) else IMAGE
    if hasattr(one, "convert") or (isinstance(one, np.ndarray) and one.ndim == 3):
        return IMAGE
    if hasattr(one, "shape") or (isinstance(one, Sequence) and not isinstance(one, bytes)):
        return SOUND
    raise InputError(f"{type(one).__name__}: expected a text, an image, a sound or a mapping of tensors")


def _reads(live: Live, stack: str | None) -> str:
    if stack is not None and stack.startswith(("vision", "audio")):
        return IMAGE if stack.startswith("vision") else SOUND
    main = str(getattr(live.model, "main_input_name", TEXT))
    return main if main in (TEXT, IMAGE) else SOUND


def choose_stack(live: Live, stacks: Mapping[str, Stack], asked: str | None, reads: str) -> Stack:
    """The stack asked for, the only one, or the tower that reads this kind of input."""
    if asked is None and len(stacks) == 1:
        return next(iter(stacks.values()))
    name = _TOWERS[reads] if asked is None else asked
    if name not in stacks:
        named = ", ".join(stacks)
        what = f"no stack {asked} to capture; it has {named}" if asked else f"has the stacks {named}: choose one"
        raise InputError(f"{kind_of(live.model)}: {what}" + ("" if asked else " with stack= (--stack)"))
    return stacks[name]


def feed_of(
    one: Any, live: Live, stack: Stack, *, reads: str, target: str | None, truncate: bool, rate: int | None
) -> Feed:
    """One input made ready for `stack`; the decoder of two stacks reads `target`, or the text itself."""
    if isinstance(one, Mapping):
        tensors = dict(one)
    elif reads == TEXT:
        tensors = _tokenized(one, live, truncate)
    elif reads == IMAGE:
        tensors = pixels_of(image_of(one), live)
    else:
        tensors = features_of(one, live, rate, truncate)
    needed = set(tensors) if isinstance(one, Mapping) else {next(n for n in (*MAIN, *tensors) if n in tensors)}
    second = DECODER in parameters(live.model) and (stack.cross or "decoder" in stack.name)
    fed = any(name.startswith("decoder_input") for name in tensors)
    if target is not None and (fed or not second):
        why = "the inputs bring what the decoder reads" if second else f"its {stack.name} reads none"
        raise InputError(f"{kind_of(live.model)}: target= (--target) was given, but {why}")
    if second and not fed:
        tensors[DECODER] = _decoder_ids(live, tensors, target, truncate)
        needed.add(DECODER)
    sides = ((TEXT, "encoder"), (DECODER, "decoder"))
    tokens = {side: _tokens(tensors[name][0], live) for name, side in sides if name in tensors}
    return Feed(tensors, frozenset(needed), tokens, _grid(tensors, live))


def _tokenized(text: str, live: Live, truncate: bool) -> dict[str, Any]:
    """Ids of a text with the tokenizer's own special tokens; InputError where it is empty or too long."""
    if not text.strip():
        raise InputError("text: empty, expected at least a word")
    if live.tokenizer is None:
        raise InputError(f"{live.name}: no tokenizer beside the model, a text cannot be read; give tokenizer=")
    limit = window(live)
    with quiet():
        tensors = dict(live.tokenizer(text, return_tensors="pt"))
        count = tensors[TEXT].shape[1]
        if limit is not None and count > limit:
            if not truncate:
                raise InputError(
                    f"text: {count} tokens, the window of {live.name} is {limit}; cut it off with truncate=True "
                    "(--truncate)"
                )
            tensors = dict(live.tokenizer(text, return_tensors="pt", truncation=True, max_length=limit))
    if count == 0:
        raise InputError("text: holds no token this model knows")
    return tensors


def window(live: Live) -> int | None:
    """The longest sequence the text model reads: its positions, or what its tokenizer says; None without a limit."""
    config = live.model.config.get_text_config()
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    limits.append(getattr(live.tokenizer, "model_max_length", None))
    for path, module in live.model.named_modules():
        if path.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from there
    known = [int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < _BOUNDLESS]
    return min(known, default=None)


def _decoder_ids(live: Live, tensors: Mapping[str, Any], target: str | None, truncate: bool) -> Any:
    """[1, N] what the decoder reads: the target behind the start token."""
    import torch

    if target is not None:
        ids = _tokenized(target, live, truncate)[TEXT]
    elif TEXT in tensors:
        ids = tensors[TEXT]
    else:
        raise InputError(f"{kind_of(live.model)}: its decoder reads a text of its own; give target= (--target)")
    config = live.model.config
    places = (config, getattr(live.model, "generation_config", None), config.get_text_config())
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    start = next((found for name in names for c in places if (found := getattr(c, name, None)) is not None), 0)
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _tokens(ids: Any, live: Live) -> tuple[str, ...]:
    if ids.dim() != 1 or live.tokenizer is None:
        return ()
    return tuple(str(token) for token in live.tokenizer.convert_ids_to_tokens(ids.tolist()))


def _grid(tensors: Mapping[str, Any], live: Live) -> tuple[int, int] | None:
    pixels = tensors.get(IMAGE)
    config = getattr(live.model.config, "vision_config", None) or live.model.config
    patch = getattr(config, "patch_size", None)
    if pixels is None or pixels.dim() != 4 or patch is None:
        return None
    height, width = patch if isinstance(patch, list | tuple) else (patch, patch)
    return pixels.shape[2] // height, pixels.shape[3] // width


def position_names(feed: Feed, length: int, side: str) -> tuple[str, ...]:
    """Names of the positions of an axis before padding is cut: tokens, patches as "row,column", else numbers.

    What stands before the patches is named [CLS], or [0], [1], … where there are several.
    """
    tokens = feed.tokens.get(side, ())
    if len(tokens) == length:
        return tokens
    if feed.grid is not None and side == "encoder":
        rows, columns = feed.grid
        extra = length - rows * columns
        if 0 <= extra <= 16:
            before = ["[CLS]"] if extra == 1 else [f"[{place}]" for place in range(extra)]
            return (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    return tuple(map(str, range(length)))
