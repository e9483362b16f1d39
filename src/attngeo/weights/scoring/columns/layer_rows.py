"""The rows of a score table that belong to one layer, its own and those of its heads, filled from their scores."""

from __future__ import annotations

from collections.abc import Sequence

from attngeo.io.threads import together
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.factored import PLAIN, Figures, FormScores
from attngeo.weights.scoring.layer import LayerFactors, head_scores, layer_scores
from attngeo.weights.scoring.nulls.gaussian import GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.rotary.frequencies import frequency_rows
from attngeo.weights.scoring.rows import Row, null_if_nan
from attngeo.weights.scoring.self_attending import self_attending_std


def turning_pairs(weights: Layer) -> RotaryPairs | None:
    """Return the rotary pairs of a layer, None where nothing is known to rotate."""
    rotates = weights.rotary_known and weights.rotary is not None and len(weights.rotary.turning) > 0
    return weights.rotary if rotates else None


def layer_rows(weights: Layer, factors: LayerFactors, figures: Figures) -> list[Row]:
    """Return the row of the layer, followed by those of its heads where their number is known; no model is named."""

    def of_layer() -> list[Row]:
        scores = layer_scores(factors.layer_query, factors.layer_key, figures, factors.groups)
        return [layer_row("", weights, scores)]

    def of_heads() -> list[Row]:
        return head_rows("", weights, head_scores(*factors.heads, figures=figures), figures)

    parts = [of_layer, of_heads] if weights.heads_known else [of_layer]
    return [row for part in together(parts, factors.work) for row in part]


def layer_row(model: str, weights: Layer, scores: FormScores) -> Row:
    """Return the row of a layer, from the scores of its form."""
    rank = weights.groups * weights.key.shape[2]
    return _common_columns(model, weights) | {"rank": rank} | _score_columns(scores, weights.cross)


def head_rows(
    model: str,
    weights: Layer,
    scored: Sequence[FormScores],
    figures: Figures = PLAIN,
    pairs: list[Row] | None = None,
) -> list[Row]:
    """Return the rows of heads, from their scores; append the rows of rotary pairs to `pairs`."""
    common, r = _common_columns(model, weights), weights.key.shape[2]
    of_heads = dict(zip(weights.head_numbers, scored, strict=False))
    if pairs is not None and figures.pairs and figures.rotary is not None:
        keys = {name: common[name] for name in ("model", "stack", "layer")}
        for head, scores in of_heads.items():
            if scores.rotary.pairs is not None:
                pairs += frequency_rows(keys | {"head": head}, scores.rotary.pairs, figures.rotary)
    return [
        common | {"head": head, "rank": r} | _score_columns(scores, weights.cross) for head, scores in of_heads.items()
    ]


def _common_columns(model: str, weights: Layer) -> Row:
    return {
        "model": model,
        "stack": weights.stack,
        "layer": weights.layer,
        "query_width": weights.query.shape[1],
        "key_width": weights.key.shape[1],
        "qk_norm": weights.qk_norm,
        "cross": weights.cross,
        "rotary": "not proved" if not weights.rotary_known else "no" if turning_pairs(weights) is None else "yes",
    }


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


def add_gaussian_null(rows: list[Row], weights: Layer, rotary: RotaryPairs | None) -> None:
    """Add the columns that compare with independent Gaussian factors of the same shape."""
    fixed, factor = (0, 1.0) if rotary is None else _unrotated(rotary, weights.key.shape[2])
    for row in rows:
        d_query, d_key, r = row["query_width"], row["key_width"], row["rank"]
        _add_z(row, gaussian_null(d_query, d_key, r), "")
        if row["self_attending"] is not None:
            row["self_attending_z"] = row["self_attending"] / self_attending_std(min(r, d_query), d_query)
        if rotary is not None:
            groups = weights.groups if row.get("head") is None else 1
            _add_z(row, rotary_null(d_query, d_key, groups, len(rotary.turning), fixed, factor), "_rope")


def _unrotated(rotary: RotaryPairs, size: int) -> tuple[int, float]:
    """Return how many dimensions of a head do not rotate, and the attention factor relative to what multiplies them."""
    fixed = rotary.fixed(size)
    return len(fixed), rotary.factor / float(rotary.scale(size)[fixed].mean()) if len(fixed) else 1.0


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


def add_folded(rows: list[Row], folded: Sequence[FormScores]) -> None:
    """Add the columns of scores with the norm before the attention folded in."""
    for row, scores in zip(rows, folded, strict=True):
        row["symmetry_folded"] = null_if_nan(scores.symmetry)
        row["directionality_folded"] = null_if_nan(scores.directionality)
