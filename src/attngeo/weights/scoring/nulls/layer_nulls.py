"""The Gaussian null of the layers in a score table, one mean and standard deviation per stack and score.

Figures draw it as a reference line with a band, and `attngeo demo` prints it below the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngeo.weights.scoring.nulls.gaussian import gaussian_null

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class NullLevel:
    """Mean and standard deviation of a score for layers with independent Gaussian factors."""

    mean: float
    std: float | None  # None where the table holds no z for the score


# (model, stack) → score ("symmetry" or "directionality") → its null
LayerNulls = Mapping[tuple[str, str], Mapping[str, NullLevel]]


def layer_nulls(frame: pl.DataFrame) -> LayerNulls:
    """Return the null of the layers of each model and stack of `frame` (columns as in `ScoreTable.frame`).

    The layers of a stack nearly always have one shape; where they do not, the null is that of the first layer. A table
    that was scored without nulls has no standard deviations, only the means: 1/d for the symmetry, 0 for the
    directionality. Cross-attention has no standard deviation either. A stack without widths or ranks has no null.
    """
    import polars as pl

    nulls = {}
    layers = frame.filter(pl.col("head").is_null()).drop_nulls(["query_width", "key_width", "rank"])
    for part in layers.partition_by("model", "stack", maintain_order=True):
        first = part.sort("layer").row(0, named=True)
        means = {"symmetry": 1 / first["query_width"], "directionality": 0.0}
        nulls[first["model"], first["stack"]] = {
            score: NullLevel(mean, _std(part.filter(~pl.col("cross")).sort("layer"), score))
            for score, mean in means.items()
        }
    return nulls


def _std(layers: pl.DataFrame, score: str) -> float | None:
    """Return the standard deviation for the first layer that has a z, None where there is none."""
    with_z = layers.drop_nulls(f"{score}_z")
    if with_z.height == 0:
        return None
    shape = with_z.select("query_width", "key_width", "rank").row(0)
    return gaussian_null(*shape).symmetry_std if score == "symmetry" else gaussian_null(*shape).directionality_std
