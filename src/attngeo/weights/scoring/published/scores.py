"""The scores published with arXiv 2502.10927.

Saponati, Sager, Vilimelis Aceituno, Stadelmann, Grewe (ICML 2025), from the result files of their repository
`attention-geometry`; `weights/data/README.md` says how they were processed. A row with a `caution` has a value that is
known, or strongly suspected, to be wrong.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from attngeo.errors import AttngeoError, InputError

if TYPE_CHECKING:
    import polars as pl


@cache
def all_published() -> pl.DataFrame:
    """Return all published rows; the columns are those of `published`."""
    import polars as pl

    return pl.read_csv(
        (files("attngeo.weights") / "data" / "published_scores.csv").read_bytes(),
        schema_overrides={"parameters": pl.Int64, "layer": pl.Int64, "caution": pl.String},
    )


def published(model: str | None = None) -> pl.DataFrame:
    """Return the published symmetry and directionality, one row per layer, of all models or of one.

    model: a hub id, or its part after the slash where that is unambiguous

    Columns: modality, family, hub_id, stack, layer, symmetry, directionality, parameters, caution (null: none known).

    >>> published("gpt2").height
    12
    """
    import polars as pl

    if model is None:
        return all_published()
    hub_id = find_published(model)
    if hub_id is None:
        raise AttngeoError(f"{model}: not among the published models; `attngeo published` lists them")
    return all_published().filter(pl.col("hub_id") == hub_id)


def list_published(
    *,
    model: str | None = None,
    family: str | None = None,
    modality: str | None = None,
    stack: str | None = None,
    caution: bool | None = None,
    layers: bool = False,
) -> pl.DataFrame:
    """Return the published rows that match every filter given.

    model, family: part of the hub id or of the family, ignoring case
    modality, stack: the whole word
    caution: True for rows with a caution only, False for rows without one
    layers: one row per layer instead of one row per model and stack with the medians over its layers
    """
    import polars as pl

    rows = all_published()
    for column, text in (("hub_id", model), ("family", family)):
        if text is not None:
            rows = rows.filter(pl.col(column).str.to_lowercase().str.contains(text.lower(), literal=True))
    for column, word in (("modality", modality), ("stack", stack)):
        if word is not None:
            if word not in (words := all_published()[column].unique().sort().to_list()):
                raise InputError(f"{column} {word!r}: expected one of {', '.join(words)}")
            rows = rows.filter(pl.col(column) == word)
    if caution is not None:
        rows = rows.filter(pl.col("caution").is_not_null() if caution else pl.col("caution").is_null())
    if layers:
        return rows
    return rows.group_by("modality", "family", "hub_id", "stack", maintain_order=True).agg(
        pl.len().alias("layers"), pl.col("symmetry", "directionality").median(), pl.col("parameters", "caution").first()
    )


def find_published(name: str) -> str | None:
    """Return the published hub id that `name` denotes, ignoring case and a revision; None where there is none."""
    if not isinstance(name, str):
        raise InputError(f"model: a {type(name).__name__}, expected the name of a published model")
    name = name.partition("@")[0].lower()
    ids: list[str] = all_published()["hub_id"].unique(maintain_order=True).to_list()
    same = [i for i in ids if i.lower() == name] or [i for i in ids if i.lower().rpartition("/")[2] == name]
    if len(same) > 1:
        raise AttngeoError(f"{name}: matches {', '.join(same)}; give the whole hub id")
    return same[0] if same else None
