"""`score`: symmetry and directionality of every layer and head of a model, compared with both nulls."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngeo.errors import InputError
from attngeo.io.names import first_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import prefetch, shared_cores, together
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.batches import layer_batches, rows_of_batches
from attngeo.weights.scoring.columns.layer_rows import (
    add_folded,
    add_gaussian_null,
    head_rows,
    layer_row,
)
from attngeo.weights.scoring.columns.requested import Requested
from attngeo.weights.scoring.device.reading import open_device, read_on_device
from attngeo.weights.scoring.factored import Figures
from attngeo.weights.scoring.layer import Memory, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.nulls.repaired import RepairedNull
from attngeo.weights.scoring.rows import Row, form_label
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from torch import device as Device

FOLDED = Figures(dominance=False)  # what is computed of folded forms
MOST_NAMED = 20  # forms without a score that the note names; it only counts the others


class NoteWarning(UserWarning):
    """A warning of `score` that is one of the notes of its table too; whoever shows the notes can ignore it."""


@accepts_progress_bar
def score(
    ref: CheckpointRef,
    *,
    heads: bool = True,
    nulls: bool = True,
    folded: bool | None = None,
    frequencies: bool = True,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    device: str | None = None,
    model: str | None = None,
    progress: Progress | bool | None = None,
) -> ScoreTable:
    """Return the scores of the attention layers of `ref` and of their heads.

    ref:         a folder or file, a hub id `org/name[@revision]`, an nn.Module, or a state dict
    heads:       score the heads too, not only the layers
    nulls:       also compare with independent random factors and with re-paired queries and keys
    folded:      also score with the norm before the attention folded in; by default unless the source is remote
    frequencies: also fill `ScoreTable.frequencies`, one row per head and rotary pair; it needs the heads
    num_heads:   the number of heads, where no transformers config states it
    stack:       only these stacks
    layers:      only these layers of each stack
    unproven:    accept a layout that has never been checked against a live model of its type
    device:      compute with torch on this device, such as "cuda", in float64; by default with NumPy
    model:       the name in the table; by default that of `ref`
    progress:    called with (number of layers scored, number of all layers); True draws a progress bar

    >>> table = attngeo.score(attngeo.bundled("encoder"))  # a small model that ships with attngeo
    >>> table.summary().select("stack", "level", "count").rows()
    [('encoder', 'layer', 4), ('encoder', 'head', 16)]
    """
    scored = score_rows(
        ref,
        heads=heads,
        nulls=nulls,
        folded=folded,
        frequencies=frequencies and heads,
        num_heads=num_heads,
        stack=stack,
        layers=layers,
        unproven=unproven,
        device=device,
        model=model,
        progress=progress if callable(progress) else None,
    )
    notes = scored.notes
    if (missing := missing_scores(scored.rows)) is not None:
        notes += (f"{scored.rows[0]['model']}: {missing}",)
        warnings.warn(notes[-1], NoteWarning, stacklevel=3)  # the caller of `score`, which is wrapped
    pairs = scored.frequencies if frequencies and heads else None
    return ScoreTable.of(scored.rows, notes, pairs, scored.model_types)


@dataclass(frozen=True)
class ScoredRows:
    """What `score_rows` returns."""

    rows: list[Row]  # as in `ScoreTable.frame`
    frequencies: list[Row]  # as in `ScoreTable.frequencies`; empty where not requested
    notes: tuple[str, ...]
    model_types: Mapping[str, str]  # as in `ScoreTable.model_types`


def score_rows(
    ref: CheckpointRef,
    *,
    heads: bool = True,
    nulls: bool = True,
    folded: bool | None = None,
    finer: bool = True,
    frequencies: bool = False,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    device: str | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> ScoredRows:
    """Return what `score` returns as plain rows, without a data frame.

    finer: also compute the scores under rotary position embedding and the effective ranks
    """
    rows: list[Row] = []
    pairs: list[Row] = []
    notes: dict[str, None] = {}
    target = None if device is None else open_device(device)
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, norms=folded, unproven=unproven)
    with opened as source, shared_cores():
        name = model if model is not None else source.model
        _check_name(name)
        requested = Requested(name, heads, nulls, finer, frequencies)
        notes |= dict.fromkeys(f"{name}: {remark}" for remark in source.left_out)
        with closing(_scored(source, target, requested, pairs, notes)) as scored:  # which ends before its source
            for done, new in enumerate(scored, 1):
                rows += new
                if progress is not None:
                    progress(done, source.count)
    return ScoredRows(rows, pairs, tuple(notes), {name: source.model_type} if source.model_type else {})


def _check_name(name: str) -> None:
    """Raise if the name of a model cannot be written into a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name!r}: is not valid UTF-8, expected another name: model= or a link to it") from None


def _scored(
    source: Layers, device: Device | None, requested: Requested, pairs: list[Row], notes: dict[str, None]
) -> Generator[list[Row], None, None]:
    """Yield the rows of each layer; layers are read ahead in threads, as NumPy arrays or as tensors on a device.

    pairs: gets the rows of rotary pairs
    notes: gets what a reader of the scores must know
    """
    if device is not None:
        with closing(read_on_device(source, device)) as upcoming:
            batches = layer_batches(_noted(upcoming, source.model_type, requested, notes))
            yield from rows_of_batches(batches, requested, FOLDED, pairs)
        return
    repaired = RepairedNull()
    memory: Memory = {}
    with closing(prefetch(source, stop=source.stop)) as upcoming:
        for weights in _noted(upcoming, source.model_type, requested, notes):
            yield _single_rows(weights, requested, pairs, repaired, memory)
    repaired.close()


def _noted(layers: Iterable[Layer], model_type: str, requested: Requested, notes: dict[str, None]) -> Iterator[Layer]:
    """Yield layers, and add what a reader of their scores must know."""
    for weights in layers:
        if requested.heads and not weights.heads_known:
            unknown = "the number of heads is unknown, so only layers are scored; set num_heads= (--num-heads)"
            notes[f"{requested.model}: {unknown}"] = None
        if not weights.rotary_known:
            unproved = (
                "whether and how this model rotates queries and keys by their positions is not proved, so the columns "
                "named rope are null"
            )
            notes[f"{requested.model}: {unproved}"] = None
        if not model_type and any(f".{name}".endswith(".qkv.weight") for name in weights.tensors):
            # The layout that most models share; a model of the reader's own may have another.
            order = "all queries, then all keys, then all values; no config says so"
            notes[f"{requested.model}: qkv.weight is read as {order}"] = None
        yield weights
        del weights  # so that its memory is freed before the next layer is waited for


def _single_rows(
    weights: Layer, requested: Requested, pairs: list[Row], repaired: RepairedNull, memory: Memory
) -> list[Row]:
    """Return the rows of one layer, all columns filled but those that wait for the last layer."""
    name, nulls, figures = requested.model, requested.nulls, requested.figures(weights)
    factors = layer_factors(weights)
    norm = None if weights.cross else weights.norm
    folded = None if norm is None else fold_norm(factors, norm, memory)

    def of_layer() -> list[Row]:
        scores = layer_scores(factors.layer_query, factors.layer_key, figures, factors.groups)
        rows = [layer_row(name, weights, scores)]
        if nulls:
            repaired.add_layer(weights.stack, factors, rows[0], figures.rotary)
        if folded is not None:
            add_folded(rows, [layer_scores(folded.layer_query, folded.layer_key, FOLDED)])
        return rows

    def of_heads() -> list[Row]:
        rows = head_rows(name, weights, head_scores(*factors.heads, figures=figures), figures, pairs)
        if nulls:
            repaired.add_heads(weights.stack, factors, rows, figures.rotary)
        if folded is not None:
            add_folded(rows, head_scores(*folded.heads, figures=FOLDED))
        return rows

    parts = together([of_layer, of_heads] if requested.heads_of(weights) else [of_layer], factors.work)
    rows = [row for part in parts for row in part]
    if nulls:
        add_gaussian_null(rows, weights, figures.rotary)
    return rows


def missing_scores(rows: Sequence[Row]) -> str | None:
    """Return a note that names the forms of one model without a score; None if all have one."""
    several = len({row["stack"] for row in rows}) > 1
    names = [(f"{row['stack']} " if several else "") + form_label(row) for row in rows if row["directionality"] is None]
    text = "no score where the query, the key or their product is zero"
    return f"{text}: {first_names(names, MOST_NAMED)}" if names else None
