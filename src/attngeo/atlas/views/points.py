"""Medians over the layers of each stack, as points in the plane of two columns of the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.atlas.tables import STATE
from attngeo.errors import InputError
from attngeo.weights.scoring.published import list_published

if TYPE_CHECKING:
    import polars as pl

PUBLISHED = ("symmetry", "directionality")  # columns that the published tables have too


def model_points(frame: pl.DataFrame, x: str, y: str) -> pl.DataFrame:
    """Return the medians of columns x and y over the self-attention layers of each model and stack.

    frame: as `Atlas.frame` returns it

    Columns: model, revision, commit, options, stack, group (encoders, decoders or other stacks), layers, x, y.
    """
    import polars as pl

    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric() and name not in ("layer", "head")]
    for column in (x, y):
        if column not in numbers:
            raise InputError(f"{column}: not a column of scores, expected one of {', '.join(numbers)}")
    layers = frame.filter(pl.col("head").is_null(), ~pl.col("cross")).drop_nulls([x, y])
    medians = layers.group_by(*STATE, "stack", maintain_order=True).agg(
        pl.len().alias("layers"), pl.col(x).median().alias("x"), pl.col(y).median().alias("y")
    )
    return medians.with_columns(_group().alias("group"))


def published_points(x: str, y: str) -> pl.DataFrame:
    """Return the published medians in the same form, without rows that have a caution; none if a column is lacking."""
    import polars as pl

    rows = list_published(caution=False)
    if not {x, y} <= set(PUBLISHED):
        return pl.DataFrame(schema={"group": pl.String, "x": pl.Float64, "y": pl.Float64})
    return rows.select(_group().alias("group"), pl.col(x).alias("x"), pl.col(y).alias("y"))


def _group() -> pl.Expr:
    """Return the group of a stack: decoders, encoders, or other stacks, such as vision and text."""
    import polars as pl

    stack = pl.col("stack")
    decoder = pl.when(stack.str.contains("decoder")).then(pl.lit("decoders"))
    return decoder.when(stack.str.contains("encoder")).then(pl.lit("encoders")).otherwise(pl.lit("other stacks"))
