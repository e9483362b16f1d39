"""`beside_published`: the scores of an atlas and the published scores of the same models, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.atlas.tables import STATE
from attngeo.weights.scoring.published import compare_with_published, find_published

if TYPE_CHECKING:
    import polars as pl

SCORES = ("symmetry", "directionality")


def beside_published(frame: pl.DataFrame, *, layers: bool = False) -> pl.DataFrame:
    """Return the scores of the models of an atlas that were published, beside the published ones.

    frame:  as `Atlas.frame` returns it
    layers: one row per layer instead of the medians per model and stack

    Columns: model, revision, commit, options, stack, layer or layers, then symmetry and directionality, each with
    `_published` and `_difference` (ours minus published), and caution, where a published value is known to be wrong.
    """
    import polars as pl

    state = (*STATE, "stack")
    own = frame.filter(pl.col("head").is_null(), ~pl.col("cross"), pl.col("revision").is_not_null())
    parts = [
        compare_with_published(part, name)
        for part in own.partition_by(*STATE, maintain_order=True)
        if (name := find_published(part["model"][0])) is not None  # also by an old name, such as gpt2
    ]
    columns = ["layer", *(name for score in SCORES for name in (score, f"{score}_published")), "caution"]
    empty = own.clear().with_columns(
        *(pl.lit(None, pl.Float64).alias(f"{score}_published") for score in SCORES),
        pl.lit(None, pl.String).alias("caution"),
    )
    rows = pl.concat([part.select(*state, *columns) for part in (empty, *parts)])
    rows = rows.filter(pl.col("symmetry_published").is_not_null())
    if not layers:
        figures = [name for name in columns[1:] if name != "caution"]
        rows = rows.group_by(*state, maintain_order=True).agg(
            pl.len().alias("layers"), pl.col(*figures).median(), pl.col("caution").first()
        )
    for score in SCORES:
        rows = rows.with_columns((pl.col(score) - pl.col(f"{score}_published")).alias(f"{score}_difference"))
    return rows.select(*(name for name in rows.columns if name != "caution"), "caution")
