"""Calibration inputs as rows, what a model has to predict in each of them, and its loss on them.

next token     a decoder predicts the token after each position
masked tokens  an encoder predicts 15% of the tokens, drawn at random
output         a model without a language-model head is compared with itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.arguments import whole_number
from attngeo.errors import InputError
from attngeo.live.attention_modules import attention_stacks
from attngeo.live.frozen import frozen_model
from attngeo.live.load import LoadedModel, quiet_transformers, run_model
from attngeo.organization.inputs import TEXT, maximum_tokens, modality, prepare_input, split_inputs
from attngeo.training.data.masking import MaskedObjective
from attngeo.weights.layout.facts import family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEXT_TOKEN, MASKED, OUTPUT = "next token", "masked tokens", "output"
IGNORED = -100  # target of a position that is not predicted
WINDOW = 512  # tokens per row of a long text, at most
BATCH_TOKENS = 2048  # positions per forward pass
_SMALLEST_WINDOW, _ROWS_WANTED = 16, 8  # a short text is cut into shorter rows, so that some can be held out
_HELD_OUT = 4  # every fourth row is held out
_MASKED_SHARE = 0.15
_MASKED_IDS = {"attention_mask": "input_ids", "decoder_attention_mask": "decoder_input_ids"}  # mask → tokens


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments of the model's forward for one or more rows, and what each position has to predict."""

    inputs: dict[str, Tensor]
    targets: Tensor | None  # [B, T], IGNORED where nothing is predicted; None: the model predicts no tokens

    def mask(self, encoder: bool = False) -> Tensor | None:
        """Return which positions [B, T] are no padding; None: all.

        encoder: those that the encoder reads, where there is a decoder too; by default those of the output
        """
        decoder = not encoder and "decoder_input_ids" in self.inputs
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on `device`, with its floating-point inputs in `dtype`."""
        inputs = {
            name: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for name, value in self.inputs.items()
        }
        return Batch(inputs, None if self.targets is None else self.targets.to(device))


@dataclass(frozen=True)
class Objective:
    """What a model predicts: NEXT_TOKEN, MASKED or OUTPUT."""

    kind: str
    masking: MaskedObjective | None = None

    def prepare(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Batch:
        """Return one row with its targets [1, T]; masked tokens are replaced in what the model reads."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if self.kind == OUTPUT:
            return Batch(inputs, None)
        side = "decoder_" if "decoder_input_ids" in inputs else ""
        ids, mask = inputs[f"{side}input_ids"], inputs.get(f"{side}attention_mask")  # [1, T]
        read = torch.ones_like(ids) if mask is None else mask  # [1, T], 0: padding
        if self.masking is None:
            following = torch.where((read[:, :-1] != 0) & (read[:, 1:] != 0), ids[:, 1:], IGNORED)  # [1, T - 1]
            return Batch(inputs, F.pad(following, (0, 1), value=IGNORED))
        kept = read[0].nonzero()[:, 0]  # [tokens], where there is no padding
        masked, positions, labels = (part[0] for part in self.masking.prepare(ids[None, :, kept], generator))
        changed = ids.scatter(1, kept[None], masked)  # [1, T]
        targets = torch.full_like(ids, IGNORED).scatter(1, kept[positions], labels)
        return Batch({**inputs, "input_ids": changed}, targets)


def objective_of(loaded: LoadedModel) -> Objective:
    """Return the objective of a model: masked tokens for encoders and next tokens for decoders with such a head."""
    config: Any = loaded.model.config
    if loaded.model.get_output_embeddings() is None:
        return Objective(OUTPUT)
    decodes = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    if decodes or family(str(config.model_type)).causal:
        return Objective(NEXT_TOKEN)
    tokenizer: Any = loaded.tokenizer
    mask = getattr(tokenizer, "mask_token_id", None)
    if mask is None:
        raise InputError(
            f"{loaded.name}: an encoder is measured by masked tokens, but no tokenizer with a mask token was found; "
            "pass one with tokenizer="
        )
    vocabulary = int(loaded.model.get_input_embeddings().num_embeddings)
    return Objective(
        MASKED, MaskedObjective(int(mask), tuple(sorted(set(tokenizer.all_special_ids))), vocabulary, _MASKED_SHARE)
    )


def read_rows(
    inputs: Any,
    loaded: LoadedModel,
    objective: Objective,
    *,
    tokens: int,
    window: int | None = None,
    target: str | None = None,
    seed: int = 0,
) -> list[Batch]:
    """Return the calibration inputs as batches of one row each.

    inputs: as in `attngeo.capture`; texts are cut into windows of at most `window` tokens, of which as many are drawn,
            over all texts, as have `tokens` tokens together
    target: what the decoder of an encoder-decoder reads where the inputs are sounds
    """
    stacks = attention_stacks(loaded.model)
    stack = stacks.get("cross") or next(iter(stacks.values()))
    texts: list[str] = []
    others: list[tuple[Any, str | None]] = []  # with the target
    for one in split_inputs(inputs)[0]:
        if isinstance(one, str) and modality(one, loaded, None) == TEXT:
            texts.append(one)
        else:
            others.append((one, target))
    if target is not None and not others:
        raise InputError("target: is read by a decoder beside sounds, but the inputs are texts, which it reads itself")
    windows = _text_rows(texts, loaded, tokens, window, seed) if texts else []
    prepared = [
        dict(
            prepare_input(
                one, loaded, stack, reads=modality(one, loaded, None), target=of_decoder, truncate=False, rate=None
            ).tensors
        )
        for one, of_decoder in [*((row, None) for row in windows), *others]
    ]
    limit = maximum_tokens(loaded)
    longest = max((int(row["input_ids"].shape[-1]) for row in prepared if "input_ids" in row), default=0)
    if limit is not None and longest > limit:
        raise InputError(f"calibration inputs: a row of {longest:,} tokens, but the model reads at most {limit:,}")
    generator = torch.Generator().manual_seed(seed)
    return [objective.prepare(row, generator) for row in prepared]


def _text_rows(
    texts: Sequence[str], loaded: LoadedModel, tokens: int, window: int | None, seed: int
) -> list[dict[str, Tensor]]:
    """Return windows of the texts, special tokens included; what is left over at the end of a text is a window too."""
    tokenizer: Any = loaded.tokenizer
    if tokenizer is None:
        raise InputError(f"{loaded.name}: no tokenizer was found with the model; pass one with tokenizer=")
    if not any(text.strip() for text in texts):
        raise InputError("calibration text: empty, expected at least some hundred words")
    with quiet_transformers():
        streams = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts if text.strip()]
        around = tokenizer("", add_special_tokens=True)["input_ids"]  # special tokens of an empty text
        inner, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    begins = (at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
    before = next(begins, 0)  # how many special tokens stand before a text
    special = len(around)
    limit = maximum_tokens(loaded) or WINDOW
    window = None if window is None else whole_number(window, "window", special + 2, limit)
    length = window or min(limit, WINDOW, max(_SMALLEST_WINDOW, sum(map(len, streams)) // _ROWS_WANTED))
    pieces = [
        around[:before] + stream[start : start + length - special] + around[before:]
        for stream in streams
        for start in range(0, len(stream), length - special)
    ]
    pieces = [piece for piece in pieces if len(piece) >= special + 2]
    if not pieces:
        raise InputError("calibration text: no two tokens of this model's vocabulary")
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(seed))
    before_each = torch.tensor([0, *(len(pieces[number]) for number in order[:-1])]).cumsum(0)
    drawn = order[: max(2, int((before_each < tokens).sum()))]
    rows = [torch.tensor([pieces[number]]) for number in drawn.sort().values]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]


def split_rows(rows: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Return the rows to fit with and the rows held out: every fourth one, at least one."""
    if len(rows) < 2:
        raise InputError("calibration inputs: 1 row, expected at least 2: one to fit with and one to hold out")
    last = min(_HELD_OUT, len(rows)) - 1
    held = [index % _HELD_OUT == last for index in range(len(rows))]
    return [row for row, out in zip(rows, held, strict=True) if not out], [
        row for row, out in zip(rows, held, strict=True) if out
    ]


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


def _stacked(rows: Sequence[Batch]) -> Batch:
    if len(rows) == 1:
        return rows[0]
    inputs = {name: _padded([row.inputs[name] for row in rows], 0) for name in _names(rows[0])}
    for mask, ids in _MASKED_IDS.items():
        lengths = {row.inputs[ids].shape[1] for row in rows if ids in row.inputs}
        if len(lengths) > 1 or (lengths and any(mask in row.inputs for row in rows)):
            inputs[mask] = _padded([row.inputs.get(mask, torch.ones_like(row.inputs[ids])) for row in rows], 0)
    targets = [row.targets for row in rows if row.targets is not None]
    return Batch(inputs, _padded(targets, IGNORED) if targets else None)


def _padded(values: Sequence[Tensor], filler: int) -> Tensor:
    """Concatenate tensors [1, …]; those of token positions [1, T] are padded at their end."""
    if values[0].dim() != 2:
        return torch.cat(list(values))
    longest = max(value.shape[1] for value in values)
    return torch.cat([F.pad(value, (0, longest - value.shape[1]), value=filler) for value in values])


def positions_mask(mask: Tensor | None, values: Tensor) -> Tensor:
    """Return which positions of values [B, T, …] count, [B, T]; a convolution may have merged several frames into one.

    >>> positions_mask(torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 3, 8)).tolist()
    [[1.0, 1.0, 0.0]]
    """
    length = values.shape[1]
    if mask is None or mask.dim() != 2 or mask.shape[1] % length:
        return torch.ones(values.shape[:2], device=values.device)
    return mask.float().unflatten(1, (length, -1)).amax(2)


def row_losses(output: Any, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return one loss per row, [B]: the mean cross-entropy of its targets.

    Without targets, the loss is the product of the model's output with a random vector, whose gradients show how
    strongly the output depends on each part of the model.
    """
    if batch.targets is not None:
        return token_losses(output.logits, batch.targets)
    values = _main_output(output)  # [B, …]
    read = _read(values, batch)  # [B, T, 1] or [B, …]
    direction = torch.randn(values.shape, generator=generator).to(values)
    return (values * direction * read).flatten(1).sum(1) / read.expand_as(values).flatten(1).sum(1).clamp_min(1).sqrt()


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row, [B]. logits: [B, T, V], targets: [B, T]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view(targets.shape).sum(1) / (targets != IGNORED).sum(1).clamp_min(1)


def mean_loss(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    reference: Sequence[Tensor] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> float:
    """Return the mean loss of a model over all predicted tokens.

    reference: for batches without targets, the outputs of the full model; the loss is then the squared difference from
               them, divided by their square
    advance:   called after each batch
    """
    total = count = 0.0
    with frozen_model(model):
        for index, batch in enumerate(batches):
            batch = batch.to(model.device, model.dtype)
            output = run_model(model, batch.inputs)
            if batch.targets is None:
                assert reference is not None
                full = reference[index].to(model.device).float()
                read = _read(full, batch)  # [B, T, 1] or [B, …]
                total += float(((_main_output(output).float() - full).square() * read).sum())
                count += float((full.square() * read).sum())
            else:
                predicted = batch.targets != IGNORED  # [B, T]
                logits, expected = output.logits[predicted].float(), batch.targets[predicted]  # [tokens, V], [tokens]
                total += float(F.cross_entropy(logits, expected, reduction="sum"))
                count += int(predicted.sum())
            advance()
    return total / max(count, 1e-30)


def reference_outputs(model: PreTrainedModel, batches: Sequence[Batch]) -> list[Tensor] | None:
    """Return the outputs of the full model for `mean_loss`; None where the batches have targets."""
    if all(batch.targets is not None for batch in batches):
        return None
    with frozen_model(model):
        return [_main_output(run_model(model, batch.to(model.device, model.dtype).inputs)).cpu() for batch in batches]


def _main_output(output: Any) -> Tensor:
    """Return what a model without a language-model head computes: logits, or the last hidden state."""
    found = output.get("logits") if output.get("logits") is not None else output.get("last_hidden_state")
    return output[0] if found is None else found


def _read(values: Tensor, batch: Batch) -> Tensor:
    """Return 1 for the positions of an output [B, T, d] that are no padding, 0 for the others; all count in [B, n]."""
    if values.dim() != 3:
        return torch.ones_like(values)
    return positions_mask(batch.mask(), values).to(values)[..., None]  # [B, T, 1]
