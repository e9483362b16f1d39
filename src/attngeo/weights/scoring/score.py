"""Score a model: every layer and head, against chance."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Any

from attngeo.io.prefetch import prefetch
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.factored import Scores
from attngeo.weights.scoring.layer import Sides, behind_norm, head_scores, layer_scores, sides
from attngeo.weights.scoring.null_gaussian import null
from attngeo.weights.scoring.null_repaired import Repaired
from attngeo.weights.scoring.table import Row, ScoreTable, known

NAMED = 20  # heads a warning names before it only counts


def score(
    ref: Any,
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
    """Symmetry and directionality of the attention layers of `ref`, and of their heads.

    ref       a folder or file, a hub id `org/name[@revision]`, an nn.Module, a state dict
    heads     score the heads too, not only the layers
    nulls     also what independent random factors give, and re-paired queries and keys
    folded    also with the norm before the attention folded in (None: unless the source is remote)
    num_heads the head count, where no transformers config says it
    stack     only these stacks; layers: only these layers of each
    unproven  take a layout that no live model of its type has confirmed
    model     the name in the table; by default what `ref` is called
    progress  called with (layers done, layers in all)
    """
    rows: list[Row] = []
    repaired = Repaired()
    blind = False
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, norms=folded, unproven=unproven)
    with opened as source, shared_cores(), closing(prefetch(source)) as coming:  # the reader ends before its source
        name = model if model is not None else source.model
        for done, weights in enumerate(coming, 1):
            blind |= heads and not weights.heads_known
            factors = sides(weights)
            new = layer_rows(name, weights, factors, heads and weights.heads_known)
            if nulls:
                add_nulls(new)
                repaired.add(weights.stack, factors, new[0], new[1:])
            if weights.norm is not None and not weights.cross:
                add_folded(new, weights, factors)
            rows += new
            if progress is not None:
                progress(done, source.count)
        repaired.close()
    warn_of_zeros(name, rows)
    note = f"{name}: the head count is unknown, so only layers are scored; num_heads= (--num-heads) gives it"
    return ScoreTable.of(rows, (note,) if blind else ())


def layer_rows(model: str, weights: AttentionWeights, factors: Sides, heads: bool) -> list[Row]:
    """The row of the layer, then those of its heads."""
    _, r, d_query = factors.query.w.shape
    groups, _, d_key = factors.key.w.shape
    about = {
        "model": model,
        "stack": weights.stack,
        "layer": weights.layer,
        "query_width": d_query,
        "key_width": d_key,
        "qk_norm": weights.qk_norm,
        "cross": weights.cross,
    }
    found = head_scores(*factors.heads) if heads else []
    whole = layer_scores(factors.layer_query, factors.layer_key)
    return [
        about | {"rank": groups * r} | figures(whole),
        *(about | {"head": head, "rank": r} | figures(scores) for head, scores in enumerate(found)),
    ]


def figures(scores: Scores) -> Row:
    return {
        "symmetry": known(scores.symmetry),
        "directionality": known(scores.directionality),
        "norm": scores.norm,
    }


def add_nulls(rows: list[Row]) -> None:
    """Columns that compare with independent Gaussian factors of the same shape."""
    for row in rows:
        chance = null(row["query_width"], row["key_width"], row["rank"])
        if row["symmetry"] is not None:
            row["symmetry_z"] = chance.symmetry_z(row["symmetry"])
        if row["directionality"] is not None:
            row["directionality_z"] = known(chance.directionality_z(row["directionality"]))
            row["directionality_p"] = chance.directionality_p(row["directionality"])


def add_folded(rows: list[Row], weights: AttentionWeights, factors: Sides) -> None:
    """Columns with the norm before the attention folded in."""
    assert weights.norm is not None
    inner = behind_norm(factors, weights.norm)
    heads = head_scores(*inner.heads) if len(rows) > 1 else []
    for row, scores in zip(rows, [layer_scores(inner.layer_query, inner.layer_key), *heads], strict=True):
        row["symmetry_folded"], row["directionality_folded"] = known(scores.symmetry), known(scores.directionality)


def warn_of_zeros(model: str, rows: list[Row]) -> None:
    """One warning that names every form without a score."""
    several = len({row["stack"] for row in rows}) > 1
    names = [
        (f"{row['stack']} " if several else "") + label(row["layer"], row.get("head"))
        for row in rows
        if row["directionality"] is None
    ]
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        text = f"{model}: query or key is all zero, so there is no score: {', '.join(names[:NAMED])}{more}"
        warnings.warn(text, UserWarning, stacklevel=3)


def label(layer: int, head: int | None) -> str:
    """L3H7, or L3 for the whole layer."""
    return f"L{layer}" if head is None else f"L{layer}H{head}"
