"""Calibration inputs as rows, each one sequence, image or sound with its targets, and rows as padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attngeo.applications.prune.calibration.objective import IGNORED, Objective
from attngeo.arguments import whole_number
from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, attention_stacks
from attngeo.live.load import LoadedModel, quiet_transformers
from attngeo.organization.inputs import TEXT, maximum_tokens, modality, prepare_input, split_inputs

WINDOW = 512  # tokens per row of a long text, at most
_SMALLEST_WINDOW, _ROWS_WANTED = 16, 8  # a short text is cut into shorter rows, so that some can be held out
BATCH_TOKENS = 2048  # positions per forward pass
_MASKED_IDS = {"attention_mask": "input_ids", "decoder_attention_mask": "decoder_input_ids"}  # mask → tokens
_HELD_OUT = 4  # every fourth row is held out


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments of the model's forward for one or more rows, and what each position has to predict."""

    inputs: dict[str, Tensor]
    targets: Tensor | None  # [B, T], IGNORED where nothing is predicted; None: the model predicts no tokens

    @property
    def rows(self) -> int:
        return int(next(iter(self.inputs.values())).shape[0])

    def mask(self, encoder: bool = False) -> Tensor | None:
        """Return which positions [B, T] are no padding; None: all.

        encoder: those that the encoder reads, where there is a decoder too; by default those of the output
        """
        decoder = not encoder and "decoder_input_ids" in self.inputs
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on `device`, with its floating-point inputs in `dtype`."""
        inputs = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in self.inputs.items()
        }
        return Batch(inputs, None if self.targets is None else self.targets.to(device))


def read_rows(
    inputs: Any,
    loaded: LoadedModel,
    objective: Objective,
    *,
    window: int | None = None,
    target: str | None = None,
    seed: int = 0,
) -> list[Batch]:
    """Return the calibration inputs as batches of one row each.

    inputs: as in `attngeo.capture`; texts are cut into windows of at most `window` tokens
    target: what the decoder of an encoder-decoder reads where the inputs are sounds
    """
    stacks = attention_stacks(loaded.model)
    stack = stacks.get("cross") or next(iter(stacks.values()))
    singles, _ = split_inputs(inputs)
    texts = [one for one in singles if isinstance(one, str) and modality(one, loaded, None) == TEXT]
    others = [one for one in singles if not (isinstance(one, str) and modality(one, loaded, None) == TEXT)]
    if target is not None and not others:
        raise InputError("target: is read by a decoder beside sounds, but the inputs are texts, which it reads itself")
    prepared = [_with_decoder(row, loaded, stack, None) for row in _text_rows(texts, loaded, window)] if texts else []
    prepared += [_with_decoder(one, loaded, stack, target) for one in others]
    _check_lengths(prepared, maximum_tokens(loaded))
    generator = torch.Generator().manual_seed(seed)
    rows = [Batch(*objective.prepare(row, generator)) for row in prepared]
    if all(row.targets is not None and bool((row.targets == IGNORED).all()) for row in rows):
        raise InputError("calibration inputs: no row has a token to predict; expected at least two tokens per row")
    return rows


def split_rows(rows: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Return the rows to fit with and the rows held out: every fourth one, at least one."""
    if len(rows) < 2:
        raise InputError("calibration inputs: 1 row, expected at least 2: one to fit with and one to hold out")
    held = [row for index, row in enumerate(rows) if index % _HELD_OUT == _HELD_OUT - 1] or [rows[-1]]
    chosen = {id(row) for row in held}
    return [row for row in rows if id(row) not in chosen], held


def batched(rows: Sequence[Batch]) -> list[Batch]:
    """Return batches of consecutive rows with at most BATCH_TOKENS positions; shorter rows are padded at their end.

    Rows of one batch have the same inputs; a mask is added where one of them has none.
    """
    longest = max(row.inputs["input_ids"].shape[1] if "input_ids" in row.inputs else 256 for row in rows)
    size = max(1, BATCH_TOKENS // longest)
    runs = [list(run) for _, run in groupby(rows, key=_names)]
    return [_stacked(run[start : start + size]) for run in runs for start in range(0, len(run), size)]


def _names(row: Batch) -> list[str]:
    """Return the names of the inputs of a row, sorted, without the masks of its tokens."""
    return sorted(name for name in row.inputs if _MASKED_IDS.get(name) not in row.inputs)


def _with_decoder(one: Any, loaded: LoadedModel, stack: Stack, target: str | None) -> dict[str, Tensor]:
    """Return the arguments of the forward for one input; the decoder of an encoder-decoder reads its text, shifted."""
    reads = modality(one, loaded, None)
    return dict(prepare_input(one, loaded, stack, reads=reads, target=target, truncate=False, rate=None).tensors)


def _check_lengths(rows: Sequence[dict[str, Tensor]], limit: int | None) -> None:
    """Raise InputError for a row that is longer than the model's window of `limit` tokens."""
    longest = max((int(row["input_ids"].shape[-1]) for row in rows if "input_ids" in row), default=0)
    if limit is not None and longest > limit:
        raise InputError(f"calibration inputs: a row of {longest:,} tokens, but the model reads at most {limit:,}")


def _text_rows(texts: Sequence[str], loaded: LoadedModel, window: int | None) -> list[dict[str, Tensor]]:
    """Return the windows of all texts, special tokens included; what is left over at the end of a text is a row too."""
    tokenizer: Any = loaded.tokenizer
    if tokenizer is None:
        raise InputError(f"{loaded.name}: no tokenizer was found with the model; pass one with tokenizer=")
    if not any(text.strip() for text in texts):
        raise InputError("calibration text: empty, expected at least some hundred words")
    with quiet_transformers():
        streams = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts if text.strip()]
        around = tokenizer("", add_special_tokens=True)["input_ids"]  # special tokens of an empty text
    special = len(around)
    limit = maximum_tokens(loaded) or WINDOW
    window = None if window is None else whole_number(window, "window", special + 2, limit)
    length = window or min(limit, WINDOW, max(_SMALLEST_WINDOW, sum(map(len, streams)) // _ROWS_WANTED))
    before, after = _surroundings(tokenizer, around)
    pieces = [
        before + stream[start : start + length - special] + after
        for stream in streams
        for start in range(0, len(stream), length - special)
    ]
    long_enough = [piece for piece in pieces if len(piece) >= special + 2]
    if not long_enough:
        raise InputError("calibration text: no two tokens of this model's vocabulary")
    rows = [torch.tensor([piece]) for piece in long_enough]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]


def _surroundings(tokenizer: Any, around: list[int]) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text, of which `around` holds both."""
    with quiet_transformers():
        inner = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a", add_special_tokens=True)["input_ids"]
    before = _find(whole, inner)
    return around[:before], around[before:]


def _find(whole: list[int], part: list[int]) -> int:
    """Return where `part` begins in `whole`; 0 where it does not occur."""
    return next((at for at in range(len(whole) - len(part) + 1) if whole[at : at + len(part)] == part), 0)


def _stacked(rows: Sequence[Batch]) -> Batch:
    if len(rows) == 1:
        return rows[0]
    inputs = {name: _padded([row.inputs[name] for row in rows], 0) for name in _names(rows[0])}
    for mask, ids in _MASKED_IDS.items():
        masks = _masks(rows, ids, mask)
        if masks is not None:
            inputs[mask] = _padded(masks, 0)
    if any(row.targets is None for row in rows):
        return Batch(inputs, None)
    return Batch(inputs, _padded([row.targets for row in rows if row.targets is not None], IGNORED))


def _masks(rows: Sequence[Batch], ids: str, mask: str) -> list[Tensor] | None:
    """Return the mask [1, T] of each row; None where no row has one, and none is padded beside the others."""
    if ids not in rows[0].inputs:
        return None
    lengths = {row.inputs[ids].shape[1] for row in rows}
    if len(lengths) == 1 and not any(mask in row.inputs for row in rows):
        return None
    return [row.inputs.get(mask, torch.ones_like(row.inputs[ids])) for row in rows]


def positions_mask(mask: Tensor | None, values: Tensor) -> Tensor:
    """Return which positions of values [B, T, …] count, [B, T]; a convolution may have merged several frames into one.

    >>> positions_mask(torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 3, 8)).tolist()
    [[1.0, 1.0, 0.0]]
    """
    length = values.shape[1]
    if mask is None or mask.dim() != 2 or mask.shape[1] % length:
        return torch.ones(values.shape[:2], device=values.device)
    return mask.float().unflatten(1, (length, -1)).amax(2)


def _padded(values: Sequence[Tensor], filler: int) -> Tensor:
    """Concatenate tensors [1, …]; those of token positions [1, T] are padded at their end."""
    if values[0].dim() != 2:
        return torch.cat(list(values))
    longest = max(value.shape[1] for value in values)
    return torch.cat([torch.nn.functional.pad(value, (0, longest - value.shape[1]), value=filler) for value in values])
