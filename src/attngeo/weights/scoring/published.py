"""The scores published with arXiv 2502.10927, and a scored model compared with them.

Saponati, Sager, Vilimelis Aceituno, Stadelmann, Grewe (ICML 2025), from the result files of their repository
`attention-geometry`; `weights/data/README.md` says how they were processed. A row with a `caution` has a value that is
known, or strongly suspected, to be wrong.

A model is compared with the same published model, or with the population of similar models.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from attngeo.errors import AttngeoError, InputError

if TYPE_CHECKING:
    import polars as pl

# Stack of a multi-modal model, as a score table names it → modality of the published models it is compared with.
_MODALITY_OF_STACK = {"text": "language", "vision": "vision", "audio": "audio"}

# Keys of a configuration that reveal the modality, most specific first: audio and vision models may have a vocabulary.
_MODALITY_KEYS = {
    "audio": ("num_mel_bins", "conv_dim", "feat_extract_norm", "sampling_rate", "num_codebooks", "audio_config"),
    "vision": ("image_size", "patch_size", "num_channels", "backbone_config", "vision_config"),
    "language": ("vocab_size",),
}

_JOINED_COLUMNS = ("published_model", "symmetry_published", "directionality_published", "caution")


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
    name = name.partition("@")[0].lower()
    ids: list[str] = all_published()["hub_id"].unique(maintain_order=True).to_list()
    same = [i for i in ids if i.lower() == name] or [i for i in ids if i.lower().rpartition("/")[2] == name]
    if len(same) > 1:
        raise AttngeoError(f"{name}: matches {', '.join(same)}; give the whole hub id")
    return same[0] if same else None


def modality_of(config: Mapping[str, object] | None) -> str | None:
    """Return the modality of a model, "language", "vision" or "audio", by the keys of its config; None if unclear."""
    return next((kind for kind, keys in _MODALITY_KEYS.items() if any(key in (config or {}) for key in keys)), None)


def compare_with_published(
    scores: pl.DataFrame, name: str | None = None, modality: str | None = None, *, whole: bool = True
) -> pl.DataFrame:
    """Return the score rows of one model with columns of published scores added to its layer rows.

    scores:   rows of a `ScoreTable` of one model
    name:     the published model to compare with; by default the hub id in the rows
    modality: the modality of the model, None if unknown
    whole:    whether the rows hold all layers of the model; a part of a model has no percentile

    Layers with a published row get published_model, symmetry_published, directionality_published and caution. A stack
    without trusted published rows gets model_symmetry_percentile, model_directionality_percentile and population: the
    percentile of the median over its layers among the published models of the same stack and `modality` (of any
    modality where that is None) that have no caution.
    """
    import polars as pl

    models: list[str] = scores["model"].unique().to_list()
    if len(models) != 1:
        raise AttngeoError(
            f"the rows of one model at a time can be compared with the published scores, got {len(models)} models"
        )
    if name is not None:
        hub_id: str | None = published(name)["hub_id"][0]
    else:
        # A folder that happens to be named like a model is not that model: only a whole hub id counts.
        hub_id = find_published(models[0]) if "/" in models[0] else None

    parts = []
    for part in scores.partition_by("stack", maintain_order=True):
        stack = part["stack"][0]
        rows = _rows_of_stack(hub_id, stack)
        joined = part.join(
            rows.cast({"layer": part.schema["layer"]}), on="layer", how="left", maintain_order="left"
        ).with_columns(
            pl.when(pl.col("head").is_null()).then(pl.col(column)).alias(column) for column in _JOINED_COLUMNS
        )
        trusted = rows.height > 0 and rows["caution"].is_null().all()
        population = _similar_models(stack, modality) if whole and not trusted else all_published().clear()
        parts.append(joined.with_columns(**_percentiles(part, population, stack, modality)))
    return pl.concat(parts)


def _rows_of_stack(hub_id: str | None, stack: str) -> pl.DataFrame:
    """Return the published rows of one stack of a model, with the columns that are joined by layer."""
    import polars as pl

    modality = _MODALITY_OF_STACK.get(stack)
    rows = all_published().filter(
        pl.col("hub_id") == (hub_id or ""), pl.col("modality") == modality if modality else pl.col("stack") == stack
    )
    if rows["stack"].n_unique() > 1:  # it is not known to which of two published stacks this one corresponds
        rows = rows.clear()
    return rows.select(
        pl.col("layer"),
        pl.col("hub_id").alias("published_model"),
        pl.col("symmetry").alias("symmetry_published"),
        pl.col("directionality").alias("directionality_published"),
        pl.col("caution"),
    )


def _similar_models(stack: str, modality: str | None) -> pl.DataFrame:
    """Return the published rows of one stack and modality that have no caution."""
    import polars as pl

    rows = all_published().filter(pl.col("caution").is_null())
    if stack in _MODALITY_OF_STACK:
        return rows.filter(pl.col("modality") == _MODALITY_OF_STACK[stack])
    rows = rows.filter(pl.col("stack") == stack)
    return rows.filter(pl.col("modality") == modality) if modality else rows


def _percentiles(part: pl.DataFrame, others: pl.DataFrame, stack: str, modality: str | None) -> dict[str, pl.Expr]:
    """Return the columns with the percentiles of the medians of one stack among the medians of other models."""
    import polars as pl

    layers = part.filter(pl.col("head").is_null(), ~pl.col("cross"))
    medians = others.group_by("hub_id").agg(pl.col("symmetry", "directionality").median())
    known = layers.height > 0 and medians.height > 0
    words = _MODALITY_OF_STACK.get(stack) or " ".join(filter(None, (modality, stack)))
    population = f"{medians.height} caution-free {words} models" if known else None
    columns = {"population": pl.lit(population, dtype=pl.String)}
    for score in ("symmetry", "directionality"):
        value = _percentile(layers[score].median(), medians[score]) if known else None
        columns[f"model_{score}_percentile"] = pl.lit(value, dtype=pl.Float64)
    return columns


def _percentile(value: object, others: pl.Series) -> float | None:
    """Return the percentage of `others` below `value`, with ties counted half."""
    if not isinstance(value, float):
        return None
    below, equal = float((others < value).sum()), float((others == value).sum())
    return 100 * (below + equal / 2) / len(others)
