"""`score`: symmetry and directionality of every layer and head of a model, compared with both nulls."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from attngeo.io.prefetch import prefetch
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.factored import FormScores
from attngeo.weights.scoring.layer import LayerFactors, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.nulls.gaussian import gaussian_null
from attngeo.weights.scoring.nulls.repaired import RepairedNull
from attngeo.weights.scoring.rows import Row, null_if_nan
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch import nn

NAMED_IN_WARNING = 20  # forms that a warning names; it only counts the others


def score(
    ref: str | os.PathLike[str] | Mapping[str, Any] | nn.Module | Checkpoint,
    *,
    heads: bool = True,
    nulls: bool = True,
    folded: bool | None = None,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    model: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScoreTable:
    """Return the symmetry and directionality of the attention layers of `ref` and of their heads.

    ref:       a folder or file, a hub id `org/name[@revision]`, an nn.Module, or a state dict
    heads:     score the heads too, not only the layers
    nulls:     also compare with independent random factors and with re-paired queries and keys
    folded:    also score with the norm before the attention folded in; by default unless the source is remote
    num_heads: the number of heads, where no transformers config states it
    stack:     only these stacks
    layers:    only these layers of each stack
    unproven:  accept a layout that has never been checked against a live model of its type
    model:     the name in the table; by default that of `ref`
    progress:  called with (number of layers scored, number of all layers)

    >>> table = attngeo.score(attngeo.bundled.bundled("encoder"))  # a small model that ships with attngeo
    >>> table.summary().select("stack", "level", "count").rows()
    [('encoder', 'layer', 4), ('encoder', 'head', 16)]
    """
    rows: list[Row] = []
    repaired = RepairedNull()
    heads_missing = False
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, norms=folded, unproven=unproven)
    with opened as source, shared_cores(), closing(prefetch(source)) as upcoming:  # the reader ends before its source
        name = model if model is not None else source.model
        for done, weights in enumerate(upcoming, 1):
            heads_missing |= heads and not weights.heads_known
            factors = layer_factors(weights)
            new = layer_rows(name, weights, factors, heads and weights.heads_known)
            if nulls:
                _add_gaussian_null(new)
                repaired.add(weights.stack, factors, new[0], new[1:])
            if weights.norm is not None and not weights.cross:
                _add_folded(new, weights, factors)
            rows += new
            if progress is not None:
                progress(done, source.count)
        repaired.close()
    _warn_of_missing_scores(name, rows)
    note = f"{name}: the number of heads is unknown, so only layers are scored; set num_heads= (--num-heads)"
    return ScoreTable.of(rows, (note,) if heads_missing else ())


def layer_rows(model: str, weights: AttentionWeights, factors: LayerFactors, heads: bool) -> list[Row]:
    """Return the row of the layer, followed by those of its heads."""
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
    }
    of_heads = head_scores(*factors.heads) if heads else []
    of_layer = layer_scores(factors.layer_query, factors.layer_key)
    return [
        common | {"rank": groups * r} | _score_columns(of_layer),
        *(
            common | {"head": head, "rank": r} | _score_columns(scores)
            for head, scores in zip(weights.head_numbers, of_heads, strict=False)  # no heads: layers alone are scored
        ),
    ]


def _score_columns(scores: FormScores) -> Row:
    return {
        "symmetry": null_if_nan(scores.symmetry),
        "directionality": null_if_nan(scores.directionality),
        "norm": scores.norm,
    }


def _add_gaussian_null(rows: list[Row]) -> None:
    """Add the columns that compare with independent Gaussian factors of the same shape."""
    for row in rows:
        null = gaussian_null(row["query_width"], row["key_width"], row["rank"])
        if row["symmetry"] is not None:
            row["symmetry_z"] = null_if_nan(null.symmetry_z(row["symmetry"]))
        if row["directionality"] is not None:
            row["directionality_z"] = null_if_nan(null.directionality_z(row["directionality"]))
            row["directionality_p"] = null.directionality_p(row["directionality"])


def _add_folded(rows: list[Row], weights: AttentionWeights, factors: LayerFactors) -> None:
    """Add the columns of scores with the norm before the attention folded in."""
    assert weights.norm is not None
    folded = fold_norm(factors, weights.norm)
    heads = head_scores(*folded.heads) if len(rows) > 1 else []
    for row, scores in zip(rows, [layer_scores(folded.layer_query, folded.layer_key), *heads], strict=True):
        row["symmetry_folded"] = null_if_nan(scores.symmetry)
        row["directionality_folded"] = null_if_nan(scores.directionality)


def _warn_of_missing_scores(model: str, rows: list[Row]) -> None:
    """Emit one warning that names the forms without a score."""
    several = len({row["stack"] for row in rows}) > 1
    names = [
        (f"{row['stack']} " if several else "") + _label(row["layer"], row.get("head"))
        for row in rows
        if row["directionality"] is None
    ]
    if names:
        more = f" and {len(names) - NAMED_IN_WARNING} more" if len(names) > NAMED_IN_WARNING else ""
        text = f"{model}: no score where the query, the key or their product is zero: "
        warnings.warn(text + ", ".join(names[:NAMED_IN_WARNING]) + more, UserWarning, stacklevel=3)


def _label(layer: int, head: int | None) -> str:
    """Return "L3H7" for a head, "L3" for a layer."""
    return f"L{layer}" if head is None else f"L{layer}H{head}"
