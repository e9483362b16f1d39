"""`score`: symmetry and directionality of every layer and head of a model, compared with both nulls."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError, first_line
from attngeo.io.names import first_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import prefetch, shared_cores
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.layer import RepairedNull, layer_rows
from attngeo.weights.scoring.score_table import Row, ScoreTable, form_label
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from torch import device as Device

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
    device: str | None = None,
    model: str | None = None,
    progress: Progress | None = None,
    **chosen: Any,
) -> ScoredRows:
    """Return what `score` returns as plain rows, without a data frame.

    finer:  also compute the scores under rotary position embedding and the effective ranks
    chosen: options of `open_layers`
    """
    rows: list[Row] = []
    pairs: list[Row] = []
    notes: dict[str, None] = {}
    target = None if device is None else open_device(device)
    opened = open_layers(ref, norms=folded, **chosen)
    with opened as source, shared_cores():
        name = model if model is not None else source.model
        notes |= dict.fromkeys(f"{name}: {remark}" for remark in source.left_out)
        repaired = RepairedNull() if nulls else None
        upcoming: Iterable[Layer] = source if target is None else (_on_device(one, target) for one in source)
        with closing(prefetch(upcoming, stop=source.stop)) as read:
            for done, weights in enumerate(read, 1):
                notes |= dict.fromkeys(f"{name}: {remark}" for remark in _remarks(weights, source.model_type, heads))
                of_pairs = pairs if frequencies else None
                new = layer_rows(weights, heads=heads, finer=finer, repaired=repaired, pairs=of_pairs)
                rows += new
                del weights  # so that its memory is freed before the next layer is waited for
                if progress is not None:
                    progress(done, source.count)
        if repaired is not None:
            repaired.close()
    for row in (*rows, *pairs):
        row["model"] = name
    return ScoredRows(rows, pairs, tuple(notes), {name: source.model_type} if source.model_type else {})


def _remarks(weights: Layer, model_type: str, heads: bool) -> Iterator[str]:
    """Yield what a reader of the scores of a layer must know."""
    if heads and not weights.heads_known:
        yield "the number of heads is unknown, so only layers are scored; set num_heads= (--num-heads)"
    if not weights.rotary_known:
        yield (
            "whether and how this model rotates queries and keys by their positions is not proved, so the columns "
            "named rope are null"
        )
    if not model_type and any(f".{name}".endswith(".qkv.weight") for name in weights.tensors):
        # The layout that most models share; a model of the reader's own may have another.
        yield "qkv.weight is read as all queries, then all keys, then all values; no config says so"


def open_device(name: str) -> Device:
    """Return a torch device that can compute in float64; InputError in one line where there is none of this name.

    >>> str(open_device("cpu"))
    'cpu'
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(f"device {name}: needs torch, which is not installed: pip install 'attngeo[torch]'") from error
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ImportError) as error:
        raise InputError(f"device {name}: cannot be used ({first_line(error)})") from error
    return device


def _on_device(weights: Layer, device: Device) -> Layer:
    """Return the layer with tensors in float64 on the device in place of its arrays."""
    import torch

    def moved(array: Any) -> Any:
        return torch.from_numpy(array).to(device).double()

    norm = None if weights.norm is None else replace(weights.norm, gain=moved(weights.norm.gain))
    return replace(weights, query=moved(weights.query), key=moved(weights.key), norm=norm)


def missing_scores(rows: Sequence[Row]) -> str | None:
    """Return a note that names the forms of one model without a score; None if all have one."""
    several = len({row["stack"] for row in rows}) > 1
    names = [(f"{row['stack']} " if several else "") + form_label(row) for row in rows if row["directionality"] is None]
    text = "no score where the query, the key or their product is zero"
    return f"{text}: {first_names(names, MOST_NAMED)}" if names else None
