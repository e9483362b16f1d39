"""The Gaussian nulls of the layers and heads in a score table, a mean and standard deviation per stack and score.

Figures draw them as reference lines with a band, and `attngeo demo` prints that of the layers below the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngeo.weights.scoring.nulls.gaussian import gaussian_null
from attngeo.weights.scoring.self_attending import self_attending_std

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class NullLevel:
    """Mean and standard deviation of a score for layers, or heads, with independent Gaussian factors."""

    mean: float
    std: float | None  # None where the table holds no z for the score


# (model, stack) → score, the name of its column → its null
LayerNulls = Mapping[tuple[str, str], Mapping[str, NullLevel]]

SCORES = ("symmetry", "directionality", "symmetry_rope", "directionality_rope", "dominance", "self_attending")


def layer_nulls(frame: pl.DataFrame) -> LayerNulls:
    """Return the null of the layers of each model and stack of `frame` (columns as in `ScoreTable.frame`).

    Symmetry and directionality are always there, the other SCORES where a layer has them. The layers of a stack nearly
    always have one shape; where they do not, the null is that of the first layer. A table that was scored without nulls
    has no standard deviations, only the means: 1/d for the symmetry, 0 for all others. Cross-attention has no standard
    deviation either. A stack without widths or ranks has no null.
    """
    import polars as pl

    return _nulls(frame, pl.col("head").is_null())


def head_nulls(frame: pl.DataFrame) -> LayerNulls:
    """Return the null of the heads of each model and stack of `frame`, as `layer_nulls` does for the layers.

    A head has a smaller rank than its layer, so its scores spread otherwise by chance. A stack without heads has none.

    >>> frame = attngeo.score(attngeo.bundled("encoder")).frame
    >>> (of_heads,), (of_layers,) = head_nulls(frame).values(), layer_nulls(frame).values()
    >>> of_heads["self_attending"].std > of_layers["self_attending"].std
    True
    """
    import polars as pl

    return _nulls(frame, pl.col("head").is_not_null())


def _nulls(frame: pl.DataFrame, chosen: pl.Expr) -> LayerNulls:
    """Return the null of the chosen forms of each model and stack."""
    import polars as pl

    nulls = {}
    rows = frame.filter(chosen).drop_nulls(["query_width", "key_width", "rank"])
    for part in rows.partition_by("model", "stack", maintain_order=True):
        part = part.sort("layer")
        first = part.row(0, named=True)
        compared = part.filter(~pl.col("cross"))
        forms = frame.filter(model=first["model"], stack=first["stack"])
        means = dict.fromkeys(SCORES, 0.0) | {"symmetry": 1 / first["query_width"]}
        nulls[first["model"], first["stack"]] = {
            score: _level(compared, forms, score) or NullLevel(mean, None)
            for score, mean in means.items()
            if score in ("symmetry", "directionality") or part[score].null_count() < part.height
        }
    return nulls


def _level(rows: pl.DataFrame, forms: pl.DataFrame, score: str) -> NullLevel | None:
    """Return the null of the first of `rows` that has a z, None where there is none."""
    with_z = rows.drop_nulls(f"{score}_z")
    if with_z.height == 0:
        return None
    d_query, d_key, r = with_z.select("query_width", "key_width", "rank").row(0)
    if score.endswith("_rope"):
        return _level_from_z(with_z if score == "directionality_rope" else forms.drop_nulls(f"{score}_z"), score)
    if score == "self_attending":
        return NullLevel(0.0, self_attending_std(min(r, d_query), d_query))
    null = gaussian_null(d_query, d_key, r)
    return {
        "symmetry": NullLevel(1 / d_query, null.symmetry_std),
        "directionality": NullLevel(0.0, null.directionality_std),
        "dominance": NullLevel(null.dominance_mean, null.dominance_std),
    }[score]


def _level_from_z(forms: pl.DataFrame, score: str) -> NullLevel | None:
    """Return the null that gave two forms their z: a table does not say how many dimensions of a head rotate.

    z = (score − mean)/std is linear, so the two forms with the smallest and the largest z determine it. A single form
    determines that of the directionality alone, whose mean is 0. Heads and layers have the same null of the symmetry.
    """
    ordered = forms.sort(f"{score}_z").select(score, f"{score}_z").rows()
    (low, low_z), (high, high_z) = ordered[0], ordered[-1]
    if high_z > low_z:
        std = (high - low) / (high_z - low_z)
        mean = low - low_z * std
        return NullLevel(mean if abs(mean) > 1e-6 * std else 0.0, std)
    return NullLevel(0.0, low / low_z) if score == "directionality_rope" and low_z else None
