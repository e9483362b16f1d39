"""The figures published with arXiv 2502.10927, and a scored model set beside them.

Saponati, Sager, Vilimelis Aceituno, Stadelmann, Grewe (ICML 2025), from the result files of their repository
`attention-geometry`; `data/README.md` says what was done to them. Rows with a `caution` are not what they claim to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    import polars as pl

# What a tower is called in a score table → the modality of the published models like it.
_TOWERS = {"text": "language", "vision": "vision", "audio": "audio"}

# Configuration keys that give a modality away, most telling first: audio and vision models may have a vocabulary too.
_SIGNS = {
    "audio": ("num_mel_bins", "conv_dim", "feat_extract_norm", "sampling_rate", "num_codebooks", "audio_config"),
    "vision": ("image_size", "patch_size", "num_channels", "backbone_config", "vision_config"),
    "language": ("vocab_size",),
}


@cache
def _all() -> pl.DataFrame:
    import polars as pl

    return pl.read_csv(
        (files("attngeo.weights") / "data" / "published_scores.csv").read_bytes(),
        schema_overrides={"parameters": pl.Int64, "layer": pl.Int64, "caution": pl.String},
    )


def published(model: str | None = None) -> pl.DataFrame:
    """Published symmetry and directionality, one row per layer; of one model by hub id or unambiguous short name.

    Columns: modality, family, hub_id, stack, layer, symmetry, directionality, parameters, caution (null: none known).

    >>> published("gpt2").height
    12
    """
    import polars as pl

    if model is None:
        return _all()
    hub_id = find(model)
    if hub_id is None:
        raise AttngeoError(f"{model}: not among the published models; `attngeo published` lists them")
    return _all().filter(pl.col("hub_id") == hub_id)


def listed(
    *,
    model: str | None = None,
    family: str | None = None,
    modality: str | None = None,
    stack: str | None = None,
    caution: bool | None = None,
    layers: bool = False,
) -> pl.DataFrame:
    """Published rows that match every word given (`model` and `family` as a part, ignoring case).

    One row per model and stack with its medians over the layers, or with `layers` one row per layer.
    """
    import polars as pl

    rows = _all()
    for column, text in (("hub_id", model), ("family", family)):
        if text is not None:
            rows = rows.filter(pl.col(column).str.to_lowercase().str.contains(text.lower(), literal=True))
    for column, word in (("modality", modality), ("stack", stack)):
        if word is not None:
            rows = rows.filter(pl.col(column) == word)
    if caution is not None:
        rows = rows.filter(pl.col("caution").is_not_null() if caution else pl.col("caution").is_null())
    if layers:
        return rows
    return rows.group_by("modality", "family", "hub_id", "stack", maintain_order=True).agg(
        pl.len().alias("layers"), pl.col("symmetry", "directionality").median(), pl.col("parameters", "caution").first()
    )


def find(name: str) -> str | None:
    """The hub id in the table that `name` means, ignoring case and a revision; None where there is none."""
    name = name.partition("@")[0].lower()
    ids: list[str] = _all()["hub_id"].unique(maintain_order=True).to_list()
    same = [i for i in ids if i.lower() == name] or [i for i in ids if i.lower().rpartition("/")[2] == name]
    if len(same) > 1:
        raise AttngeoError(f"{name}: could be {', '.join(same)}; give the whole hub id")
    return same[0] if same else None


def modality(config: Mapping[str, Any] | None) -> str | None:
    """What a model reads, by the keys its configuration has: "language", "vision", "audio", or None where unclear."""
    return next((kind for kind, keys in _SIGNS.items() if any(key in (config or {}) for key in keys)), None)


def beside(
    scores: pl.DataFrame, name: str | None = None, modality: str | None = None, *, whole: bool = True
) -> pl.DataFrame:
    """One model's score rows with the published figures beside its layer rows.

    `name` is the published model to compare with, by default the hub id the rows carry. Added columns:
    published_model, symmetry_published, directionality_published, caution on layers that have a published row; where
    a stack has none that can be trusted, model_symmetry_percentile, model_directionality_percentile and population:
    where the median of the stack's layers lies among the caution-free published models of the same stack and
    `modality` (of any modality where that is None). Some layers of a model have no percentile: `whole` False.
    """
    import polars as pl

    models: list[str] = scores["model"].unique().to_list()
    if len(models) != 1:
        raise AttngeoError(f"one model at a time can be set beside the published ones, got {len(models)}")
    if name is not None:
        hub_id: str | None = published(name)["hub_id"][0]
    else:
        # A folder that happens to be called like a model is not that model: only a whole hub id counts.
        hub_id = find(models[0]) if "/" in models[0] else None

    parts = []
    for part in scores.partition_by("stack", maintain_order=True):
        stack = part["stack"][0]
        rows = _rows(hub_id, stack)
        joined = part.join(
            rows.cast({"layer": part.schema["layer"]}), on="layer", how="left", maintain_order="left"
        ).with_columns(
            pl.when(pl.col("head").is_null()).then(pl.col(column)).alias(column)
            for column in ("published_model", "symmetry_published", "directionality_published", "caution")
        )
        trusted = rows.height > 0 and rows["caution"].is_null().all()
        others = _kind(stack, modality) if whole and not trusted else _all().clear()
        parts.append(joined.with_columns(**_percentiles(part, others, stack, modality)))
    return pl.concat(parts)


def _rows(hub_id: str | None, stack: str) -> pl.DataFrame:
    """Published rows of one stack of a model, ready to be joined by layer."""
    import polars as pl

    tower = _TOWERS.get(stack)
    rows = _all().filter(
        pl.col("hub_id") == (hub_id or ""), pl.col("modality") == tower if tower else pl.col("stack") == stack
    )
    if rows["stack"].n_unique() > 1:  # a tower that could be either of two published stacks is neither
        rows = rows.clear()
    return rows.select(
        pl.col("layer"),
        pl.col("hub_id").alias("published_model"),
        pl.col("symmetry").alias("symmetry_published"),
        pl.col("directionality").alias("directionality_published"),
        pl.col("caution"),
    )


def _kind(stack: str, modality: str | None) -> pl.DataFrame:
    """Caution-free published rows of one stack and modality."""
    import polars as pl

    rows = _all().filter(pl.col("caution").is_null())
    if stack in _TOWERS:
        return rows.filter(pl.col("modality") == _TOWERS[stack])
    rows = rows.filter(pl.col("stack") == stack)
    return rows.filter(pl.col("modality") == modality) if modality else rows


def _percentiles(part: pl.DataFrame, kind: pl.DataFrame, stack: str, modality: str | None) -> dict[str, pl.Expr]:
    """Columns that place the medians of one stack's layers among the medians of the models in `kind`."""
    import polars as pl

    layers = part.filter(pl.col("head").is_null(), ~pl.col("cross"))
    medians = kind.group_by("hub_id").agg(pl.col("symmetry", "directionality").median())
    known = layers.height > 0 and medians.height > 0
    words = _TOWERS.get(stack) or " ".join(filter(None, (modality, stack)))
    population = f"{medians.height} caution-free {words} models" if known else None
    columns = {"population": pl.lit(population, dtype=pl.String)}
    for score in ("symmetry", "directionality"):
        value = _percentile(layers[score].median(), medians[score]) if known else None
        columns[f"model_{score}_percentile"] = pl.lit(value, dtype=pl.Float64)
    return columns


def _percentile(value: object, others: pl.Series) -> float | None:
    """Per cent of `others` below `value`, ties counted half."""
    if not isinstance(value, float):
        return None
    below, equal = float((others < value).sum()), float((others == value).sum())
    return 100 * (below + equal / 2) / len(others)
