"""`score`: symmetry and directionality of every layer and head of a model, compared with both nulls."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from attngeo.io.prefetch import prefetch
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.device.reading import open_device, read_on_device
from attngeo.weights.scoring.factored import PLAIN, Figures, FormScores
from attngeo.weights.scoring.layer import LayerFactors, Memory, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.nulls.gaussian import GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.nulls.repaired import RepairedNull
from attngeo.weights.scoring.rotary.frequencies import frequency_rows
from attngeo.weights.scoring.rows import Row, null_if_nan
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.scoring.self_attending import self_attending_std
from attngeo.weights.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch import device as Device
    from torch import nn

Reference: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | nn.Module | Checkpoint"
NAMED_IN_WARNING = 20  # forms that a warning names; it only counts the others


def score(
    ref: Reference,
    *,
    heads: bool = True,
    nulls: bool = True,
    folded: bool | None = None,
    frequencies: bool = False,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    device: str | None = None,
    model: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScoreTable:
    """Return the scores of the attention layers of `ref` and of their heads.

    ref:         a folder or file, a hub id `org/name[@revision]`, an nn.Module, or a state dict
    heads:       score the heads too, not only the layers
    nulls:       also compare with independent random factors and with re-paired queries and keys
    folded:      also score with the norm before the attention folded in; by default unless the source is remote
    frequencies: also fill `ScoreTable.frequencies`, one row per head and rotary pair
    num_heads:   the number of heads, where no transformers config states it
    stack:       only these stacks
    layers:      only these layers of each stack
    unproven:    accept a layout that has never been checked against a live model of its type
    device:      compute with torch on this device, such as "cuda", in float64; by default with NumPy
    model:       the name in the table; by default that of `ref`
    progress:    called with (number of layers scored, number of all layers)

    >>> table = attngeo.score(attngeo.bundled.bundled("encoder"))  # a small model that ships with attngeo
    >>> table.summary().select("stack", "level", "count").rows()
    [('encoder', 'layer', 4), ('encoder', 'head', 16)]
    """
    scored = score_rows(
        ref,
        heads=heads,
        nulls=nulls,
        folded=folded,
        frequencies=frequencies,
        num_heads=num_heads,
        stack=stack,
        layers=layers,
        unproven=unproven,
        device=device,
        model=model,
        progress=progress,
    )
    _warn_of_missing_scores(scored.rows)
    return ScoreTable.of(scored.rows, scored.notes, scored.frequencies if frequencies else None)


@dataclass(frozen=True)
class ScoredRows:
    """What `score_rows` returns."""

    rows: list[Row]  # as in `ScoreTable.frame`
    frequencies: list[Row]  # as in `ScoreTable.frequencies`; empty where not requested
    notes: tuple[str, ...]


def score_rows(
    ref: Reference,
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
    progress: Callable[[int, int], None] | None = None,
) -> ScoredRows:
    """Return what `score` returns as plain rows, without a data frame.

    finer: also compute the scores under rotary position embedding and the effective ranks
    """
    rows: list[Row] = []
    pairs: list[Row] = []
    notes: dict[str, None] = {}
    repaired = RepairedNull()
    memory: Memory = {}
    target = None if device is None else open_device(device)
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, norms=folded, unproven=unproven)
    with opened as source, shared_cores(), closing(_reader(source, target)) as upcoming:  # which ends before its source
        name = model if model is not None else source.model
        for done, weights in enumerate(upcoming, 1):
            notes |= dict.fromkeys(_notes(name, weights, heads))
            factors = layer_factors(weights)
            figures = Figures(ranks=finer, rotary=turning_pairs(weights) if finer else None, pairs=frequencies)
            new = layer_rows(name, weights, factors, heads and weights.heads_known, figures, pairs)
            if nulls:
                _add_gaussian_null(new, weights, figures.rotary)
                repaired.add(weights.stack, factors, new[0], new[1:], figures.rotary)
            if weights.norm is not None and not weights.cross:
                _add_folded(new, weights, factors, memory)
            rows += new
            if progress is not None:
                progress(done, source.count)
        repaired.close()
    return ScoredRows(rows, pairs, tuple(notes))


def _reader(source: Layers, device: Device | None) -> Generator[AttentionWeights, None, None]:
    """Yield the layers, read ahead in threads; as NumPy arrays, or as tensors on a device."""
    return prefetch(source) if device is None else read_on_device(source, device)


def _notes(model: str, weights: AttentionWeights, heads: bool) -> Iterator[str]:
    """Yield what a reader of the scores of this layer must know."""
    if heads and not weights.heads_known:
        yield f"{model}: the number of heads is unknown, so only layers are scored; set num_heads= (--num-heads)"
    if not weights.rotary_known:
        yield (
            f"{model}: the rotary position embedding of this model type was never checked against a live model, "
            "so the columns named rope are null"
        )


def turning_pairs(weights: AttentionWeights) -> RotaryPairs | None:
    """Return the rotary pairs of a layer, None where nothing is known to rotate."""
    rotates = weights.rotary_known and weights.rotary is not None and len(weights.rotary.turning) > 0
    return weights.rotary if rotates else None


def layer_rows(
    model: str,
    weights: AttentionWeights,
    factors: LayerFactors,
    heads: bool,
    figures: Figures = PLAIN,
    pairs: list[Row] | None = None,
) -> list[Row]:
    """Return the row of the layer, followed by those of its heads; append the rows of rotary pairs to `pairs`."""
    _, r, d_query = factors.query.w.shape
    groups, _, d_key = factors.key.w.shape
    common = {
        "model": model,
        "stack": weights.stack,
        "layer": weights.layer,
        "query_width": d_query,
        "key_width": d_key,
        "qk_norm": weights.qk_norm,
        "cross": weights.cross,
        "rotary": "not proved" if not weights.rotary_known else "no" if turning_pairs(weights) is None else "yes",
    }
    scored = head_scores(*factors.heads, figures=figures) if heads else []
    of_heads = dict(zip(weights.head_numbers, scored, strict=False))  # no scores: only the layer was asked for
    of_layer = layer_scores(factors.layer_query, factors.layer_key, figures, groups)
    if pairs is not None and figures.pairs and figures.rotary is not None:
        keys = {name: common[name] for name in ("model", "stack", "layer")}
        for head, scores in of_heads.items():
            if scores.rotary.pairs is not None:
                pairs += frequency_rows(keys | {"head": head}, scores.rotary.pairs, figures.rotary)
    return [
        common | {"rank": groups * r} | _score_columns(of_layer, weights.cross),
        *(
            common | {"head": head, "rank": r} | _score_columns(scores, weights.cross)
            for head, scores in of_heads.items()
        ),
    ]


def _score_columns(scores: FormScores, cross: bool) -> Row:
    return {
        "symmetry": null_if_nan(scores.symmetry),
        "directionality": null_if_nan(scores.directionality),
        "symmetry_rope": null_if_nan(scores.rotary.symmetry),
        "directionality_rope": null_if_nan(scores.rotary.directionality),
        "dominance": null_if_nan(scores.dominance),
        "self_attending": None if cross else null_if_nan(scores.self_attending),
        "rank_symmetric": null_if_nan(scores.rank_symmetric),
        "rank_skew": null_if_nan(scores.rank_skew),
        "norm": scores.norm,
    }


def _add_gaussian_null(rows: list[Row], weights: AttentionWeights, rotary: RotaryPairs | None) -> None:
    """Add the columns that compare with independent Gaussian factors of the same shape."""
    fixed = 0 if rotary is None else len(rotary.fixed(weights.key.shape[2]))
    for row in rows:
        d_query, d_key, r = row["query_width"], row["key_width"], row["rank"]
        _add_z(row, gaussian_null(d_query, d_key, r), "")
        if row["self_attending"] is not None:
            row["self_attending_z"] = row["self_attending"] / self_attending_std(min(r, d_query), d_query)
        if rotary is not None:
            groups = len(weights.key) if row.get("head") is None else 1
            _add_z(row, rotary_null(d_query, d_key, groups, len(rotary.turning), fixed), "_rope")


def _add_z(row: Row, null: GaussianNull, variant: str) -> None:
    """Add z and p of the scores whose columns have this suffix."""
    symmetry, directionality = row[f"symmetry{variant}"], row[f"directionality{variant}"]
    if symmetry is not None:
        row[f"symmetry{variant}_z"] = null_if_nan(null.symmetry_z(symmetry))
    if directionality is not None:
        row[f"directionality{variant}_z"] = null_if_nan(null.directionality_z(directionality))
        row[f"directionality{variant}_p"] = null.directionality_p(directionality)
    if not variant and row["dominance"] is not None:
        row["dominance_z"] = null_if_nan(null.dominance_z(row["dominance"]))


def _add_folded(rows: list[Row], weights: AttentionWeights, factors: LayerFactors, memory: Memory) -> None:
    """Add the columns of scores with the norm before the attention folded in."""
    assert weights.norm is not None
    folded = fold_norm(factors, weights.norm, memory)
    figures = Figures(dominance=False)
    heads = head_scores(*folded.heads, figures=figures) if len(rows) > 1 else []
    for row, scores in zip(rows, [layer_scores(folded.layer_query, folded.layer_key, figures), *heads], strict=True):
        row["symmetry_folded"] = null_if_nan(scores.symmetry)
        row["directionality_folded"] = null_if_nan(scores.directionality)


def _warn_of_missing_scores(rows: list[Row]) -> None:
    """Emit one warning that names the forms without a score."""
    several = len({row["stack"] for row in rows}) > 1
    names = [
        (f"{row['stack']} " if several else "") + _label(row["layer"], row.get("head"))
        for row in rows
        if row["directionality"] is None
    ]
    if names:
        more = f" and {len(names) - NAMED_IN_WARNING} more" if len(names) > NAMED_IN_WARNING else ""
        text = f"{rows[0]['model']}: no score where the query, the key or their product is zero: "
        warnings.warn(text + ", ".join(names[:NAMED_IN_WARNING]) + more, UserWarning, stacklevel=3)


def _label(layer: int, head: int | None) -> str:
    """Return "L3H7" for a head, "L3" for a layer."""
    return f"L{layer}" if head is None else f"L{layer}H{head}"
