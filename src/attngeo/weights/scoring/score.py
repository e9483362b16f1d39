"""`score`: symmetry and directionality of every layer and head of a model, compared with both nulls."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attngeo.arrays import to_numpy
from attngeo.errors import InputError, first_line
from attngeo.io.names import first_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import prefetch, shared_cores, together
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import Scores
from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from attngeo.weights.scoring.layer import LayerFactors, head_scores, layer_scores
from attngeo.weights.scoring.repaired_null import RepairedNull
from attngeo.weights.scoring.rotary import frequency_rows
from attngeo.weights.scoring.score_table import Row, ScoreTable, form_label, null_if_nan, score_columns
from attngeo.weights.scoring.symmetry import self_attending_std
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from torch import device as Device

# The columns that `Scores` fills.
COLUMNS = ("symmetry", "directionality", "symmetry_rope", "directionality_rope", "dominance", "self_attending",
           "rank_symmetric", "rank_skew", "norm")  # fmt: skip
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


def _check_name(name: str) -> None:
    """Raise if the name of a model cannot be written into a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name!r}: is not valid UTF-8, expected another name: model= or a link to it") from None


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


# ---- the rows of one layer


def layer_rows(
    weights: Layer,
    *,
    heads: bool = True,
    finer: bool = True,
    repaired: RepairedNull | None = None,
    pairs: list[Row] | None = None,
) -> list[Row]:
    """Return the row of the layer, followed by those of its heads where their number is known; no model is named.

    finer:    as in `score_rows`
    repaired: if given, also fill the columns of both nulls; those of the re-paired one may wait for the last layer
    pairs:    if given, gets the rows of rotary pairs
    """
    factors, stack = LayerFactors.of(weights), weights.stack
    rotary = turning_pairs(weights) if finer else None
    norm = None if weights.cross else weights.norm

    def of_layer() -> list[Row]:
        rows = _rows(weights, [None], layer_scores(factors, rotary, ranks=finer))
        if repaired is not None:
            repaired.add_layer(stack, factors, rows[0], rotary)
        if norm is not None:
            _add_folded(rows, layer_scores(factors, norm=norm))
        return rows

    def of_heads() -> list[Row]:
        scores = head_scores(factors, rotary, ranks=finer)
        rows = _rows(weights, weights.head_numbers, scores)
        if pairs is not None and rotary is not None and rows[0]["query_width"] == rows[0]["key_width"]:
            terms = [to_numpy(values) for values in (scores.alpha, scores.beta, scores.energy)]  # [H, n]
            for row, alpha, beta, energy in zip(rows, *terms, strict=True):
                names = {name: row[name] for name in ("stack", "layer", "head")}
                pairs.extend(frequency_rows(names, alpha, beta, energy, rotary))
        if repaired is not None:
            repaired.add_heads(stack, factors, rows, rotary)
        if norm is not None:
            _add_folded(rows, head_scores(factors, norm=norm))
        return rows

    parts = together([of_layer, of_heads] if heads and weights.heads_known else [of_layer], factors.work)
    rows = [row for part in parts for row in part]
    if repaired is not None:
        for row in rows:
            _add_gaussian_null(row, weights, rotary)
    return rows


def turning_pairs(weights: Layer) -> RotaryPairs | None:
    """Return the rotary pairs of a layer, None where nothing is known to rotate."""
    rotates = weights.rotary_known and weights.rotary is not None and len(weights.rotary.turning) > 0
    return weights.rotary if rotates else None


def _rows(weights: Layer, heads: Sequence[int | None], scores: Scores[Any]) -> list[Row]:
    """Return the rows of forms from their scores; the head None is the layer form."""
    r = weights.key.shape[2]
    common = {
        "stack": weights.stack,
        "layer": weights.layer,
        "query_width": weights.query.shape[1],
        "key_width": weights.key.shape[1],
        "qk_norm": weights.qk_norm,
        "cross": weights.cross,
        "rotary": "not proved" if not weights.rotary_known else "no" if turning_pairs(weights) is None else "yes",
    }
    rows = []
    for head, columns in zip(heads, score_columns(scores, COLUMNS), strict=True):
        if weights.cross:  # queries and keys are different tokens, so that none attends to itself
            columns["self_attending"] = None
        rows.append(common | {"head": head, "rank": weights.groups * r if head is None else r} | columns)
    return rows


def _add_folded(rows: Sequence[Row], scores: Scores[Any]) -> None:
    """Add the columns of scores with the norm before the attention folded in."""
    for row, found in zip(rows, score_columns(scores, ("symmetry", "directionality")), strict=True):
        row |= {f"{name}_folded": value for name, value in found.items()}


def _add_gaussian_null(row: Row, weights: Layer, rotary: RotaryPairs | None) -> None:
    """Add the columns that compare a form with independent Gaussian factors of the same shape."""
    d_query, d_key, r = row["query_width"], row["key_width"], row["rank"]
    null = gaussian_null(d_query, d_key, r)
    levels = {f"{score}": null.level(score) for score in ("symmetry", "directionality", "dominance")}
    levels["self_attending"] = 0.0, self_attending_std(min(r, d_query), d_query)
    nulls = {"directionality": null}
    if rotary is not None:
        size = weights.key.shape[2]
        still = rotary.fixed(size)  # dimensions of a head that do not rotate
        factor = rotary.factor / float(rotary.scale(size)[still].mean()) if len(still) else 1.0
        groups = weights.groups if row["head"] is None else 1
        null = rotary_null(d_query, d_key, groups, len(rotary.turning), len(still), factor)
        levels |= {f"{score}_rope": null.level(score) for score in ("symmetry", "directionality")}
        nulls["directionality_rope"] = null
    for score, (mean, std) in levels.items():
        if row[score] is not None:
            row[f"{score}_chance"], row[f"{score}_chance_std"] = mean, null_if_nan(std)
            row[f"{score}_z"] = (row[score] - mean) / std if std > 0 else None
    for score, null in nulls.items():
        if row[score] is not None:
            row[f"{score}_p"] = null.directionality_p(row[score])


def missing_scores(rows: Sequence[Row]) -> str | None:
    """Return a note that names the forms of one model without a score; None if all have one."""
    several = len({row["stack"] for row in rows}) > 1
    names = [(f"{row['stack']} " if several else "") + form_label(row) for row in rows if row["directionality"] is None]
    text = "no score where the query, the key or their product is zero"
    return f"{text}: {first_names(names, MOST_NAMED)}" if names else None
