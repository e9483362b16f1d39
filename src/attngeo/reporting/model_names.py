"""What the models of a report are called, so that readers can tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attngeo.io.names import distinct_names, short_name
from attngeo.reporting.results import ModelResults
from attngeo.weights.scoring.score_table import ScoreTable


def tell_apart(models: Sequence[ModelResults]) -> tuple[ModelResults, ...]:
    """Rename the models that a page would call by one name, in all of their results, and return them."""
    shown = [short_name(model.scored_name) for model in models]
    alike = [model for model, name in zip(models, shown, strict=True) if shown.count(name) > 1]
    for model, name in zip(alike, distinct_names([model.full_name for model in alike]), strict=True):
        _rename(model, name)
    return tuple(alike)


def _rename(model: ModelResults, name: str) -> None:
    """Give a model, and those of its results that a page names, another name."""
    model.name = name
    model.forms = tuple(replace(form, model=name) for form in model.forms)
    for field in ("curves", "plan", "losses"):
        if (result := getattr(model, field)) is not None:
            setattr(model, field, replace(result, model=name))
    if model.scores is not None:
        model.scores = _renamed(model.scores, name)


def _renamed(table: ScoreTable, name: str) -> ScoreTable:
    """Return the score table of one model under another name; remarks keep the full name."""
    import polars as pl

    column, kind = pl.lit(name).alias("model"), table.model_types.get(table.frame["model"][0])
    return replace(
        table,
        frame=table.frame.with_columns(column),
        frequencies=None if table.frequencies is None else table.frequencies.with_columns(column),
        model_types={} if kind is None else {name: kind},
    )
