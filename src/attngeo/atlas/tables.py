"""The tables of an atlas as data frames: models, failures, and the scores of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.atlas.store import TABLES, Store
from attngeo.errors import InputError

if TYPE_CHECKING:
    import polars as pl

# What identifies a row of the table of models; of several versions of the results, the newest counts.
STATE = ("model", "revision", "commit", "options")
IN_FRAME = (*STATE, "model_type")  # columns of the table of models that stand beside the scores
FRAME_COLUMNS = (*IN_FRAME, *(name for name in TABLES["scores"] if name != "part"), "part")


def models_frame(store: Store) -> pl.DataFrame:
    """Return one row per model, revision, commit and options."""
    import polars as pl

    # Files that were touched and not changed give the same row twice.
    models = store.frame("models").unique(maintain_order=True)
    newest = pl.col("results") == pl.col("results").max().over(*STATE)
    return models.filter(newest).sort(*STATE, "part")


def failures_frame(store: Store) -> pl.DataFrame:
    """Return one row per reference that could not be scored."""
    return store.frame("failures").sort("model", "revision", "options", "results")


def scores_frame(store: Store) -> pl.DataFrame:
    """Return the scores of all models, sorted: those of a copy appear under its name too."""
    models = models_frame(store)  # first: the part of a model is written before its row
    check_parts(store, models)
    scores = store.frame("scores")
    joined = models.select(*IN_FRAME, "part").join(scores, on="part", how="inner")
    return joined.select(FRAME_COLUMNS).sort(*STATE, "part", "stack", "layer", "head", nulls_last=False)


def check_parts(store: Store, models: pl.DataFrame) -> None:
    """Raise InputError if the part of a model is missing: a join would leave the model out."""
    for model, part in models.select("model", "part").iter_rows():
        if not store.has("scores", part):
            raise InputError(
                f"{store.root}: the scores of {model} are missing (scores/{part}.parquet); adding the model again "
                "restores them"
            )
