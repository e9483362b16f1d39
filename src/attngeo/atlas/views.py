"""What is computed from the tables of an atlas.

Scored models
    model_points, published_points   medians per model and stack, for a plane of two columns
    training_records                 the revisions of one run in order of step
    beside_published                 scores and published scores of the same models

Organised networks
    networks_frame    one row per network, options and text
    agreement_frame   how well the geometries of the heads on two texts agree
    summarize         the mean of each figure over texts, its 95% interval, and its control
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.atlas.store import CONTRASTS, STATE, TABLES, Store
from attngeo.errors import InputError
from attngeo.weights.scoring.published import compare_with_published, find_published, list_published
from attngeo.weights.scoring.score_table import null_if_nan

if TYPE_CHECKING:
    import polars as pl

    from attngeo.arrays import Floats
    from attngeo.organization.tree import Tree

FIGURES = ("symmetry", "directionality")  # columns that were published, and that a run is drawn by


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
    medians = (
        _layers(frame)
        .drop_nulls([x, y])
        .group_by(*STATE, "stack", maintain_order=True)
        .agg(pl.len().alias("layers"), pl.col(x).median().alias("x"), pl.col(y).median().alias("y"))
    )
    return medians.with_columns(_group().alias("group"))


def published_points(x: str, y: str) -> pl.DataFrame:
    """Return the published medians in the same form, without rows that have a caution; none if a column is lacking."""
    import polars as pl

    if not {x, y} <= set(FIGURES):
        return pl.DataFrame(schema={"group": pl.String, "x": pl.Float64, "y": pl.Float64})
    return list_published(caution=False).select(_group().alias("group"), pl.col(x).alias("x"), pl.col(y).alias("y"))


def _layers(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of self-attention layers, without those of heads."""
    import polars as pl

    return frame.filter(pl.col("head").is_null(), ~pl.col("cross"))


def _group() -> pl.Expr:
    """Return the group of a stack: decoders, encoders, or other stacks, such as vision and text."""
    import polars as pl

    stack = pl.col("stack")
    decoder = pl.when(stack.str.contains("decoder")).then(pl.lit("decoders"))
    return decoder.when(stack.str.contains("encoder")).then(pl.lit("encoders")).otherwise(pl.lit("other stacks"))


def beside_published(frame: pl.DataFrame, *, layers: bool = False) -> pl.DataFrame:
    """Return the scores of the models of an atlas that were published, beside the published ones.

    frame:  as `Atlas.frame` returns it
    layers: one row per layer instead of the medians per model and stack

    Columns: model, revision, commit, options, stack, layer or layers, then symmetry and directionality, each with
    `_published` and `_difference` (ours minus published), and caution, where a published value is known to be wrong.
    """
    import polars as pl

    own = _layers(frame).filter(pl.col("revision").is_not_null())
    both = [name for score in FIGURES for name in (score, f"{score}_published")]
    missing = [pl.lit(None, pl.Float64).alias(f"{score}_published") for score in FIGURES]
    parts = [own.clear().with_columns(*missing, pl.lit(None, pl.String).alias("caution"))]
    for part in own.partition_by(*STATE, maintain_order=True):
        if (name := find_published(part["model"][0])) is not None:  # also by an old name, such as gpt2
            parts.append(compare_with_published(part, name))
    rows = pl.concat([part.select(*STATE, "stack", "layer", *both, "caution") for part in parts])
    rows = rows.filter(pl.col("symmetry_published").is_not_null())
    if not layers:
        rows = rows.group_by(*STATE, "stack", maintain_order=True).agg(
            pl.len().alias("layers"), pl.col(*both).median(), pl.col("caution").first()
        )
    for score in FIGURES:
        rows = rows.with_columns((pl.col(score) - pl.col(f"{score}_published")).alias(f"{score}_difference"))
    return rows.select(pl.exclude("caution"), "caution")


def training_records(frame: pl.DataFrame, run: str) -> list[dict[str, Any]]:
    """Return one record per checkpoint of a run: step, and the stack, layer, symmetry and directionality of each layer.

    frame: as `Atlas.frame` returns it
    run:   a hub id whose revisions are checkpoints (step1000, …), or a folder that contains them (checkpoint-1000, …)

    The step is the number after "step" in the name of the revision or the folder, or the last number if there is no
    such word; names without a number are left out. InputError where two checkpoints with one step have other scores, as
    two commits of a branch may.
    """
    folder = os.path.abspath(os.path.expanduser(run))
    records: dict[int, dict[str, Any]] = {}
    names: list[str] = []
    for part in _layers(frame).partition_by(*STATE, maintain_order=True):
        model, revision = part.select("model", "revision").row(0)
        if model != run and os.path.dirname(model) != folder:
            continue
        name = os.path.basename(model) if revision is None else revision
        names.append(name)
        if (step := _step(name)) is None:
            continue
        rows = part.sort("stack", "layer").select("stack", "layer", *FIGURES)
        record = {"step": step} | {column: rows[column].to_list() for column in rows.columns}
        if records.setdefault(step, record) != record:
            raise InputError(f"{run}: two checkpoints of step {step} have other scores ({name}), expected one per step")
    if len(records) < 2:
        shown = (", ".join(names[:3]) or "none") + (", …" if len(names) > 3 else "")
        raise InputError(
            f"{run}: the atlas has {len(records)} checkpoints with a step in their names, of {shown}; expected two"
        )
    return [records[step] for step in sorted(records)]


def _step(name: str) -> int | None:
    """Return the step that the name of a checkpoint contains; a commit has none.

    >>> _step("step1000-tokens4B"), _step("checkpoint-500"), _step("main"), _step("0a" * 20)
    (1000, 500, None, None)
    """
    numbers = re.findall(r"step[-_]?(\d+)", name) or re.findall(r"\d+", name)
    return None if not numbers or re.fullmatch(r"[0-9a-f]{40}", name) else int(numbers[-1])


# ---- organised networks

NETWORK = tuple(TABLES["networks"])  # model, revision, commit, content
AGREEMENT = ("rank_correlation", "information", "procrustes")
# Figure → its control and whether larger is better; None: without a control.
CONTROLS: dict[str, tuple[str, bool] | None] = {
    "gain": ("gain_permuted", True),
    "l1_l2_trees": ("l1_l2_dyadic", False),
    "l1_l2_dyadic": None,
    "l1_l2_shuffled": None,
    "l1_l2_cosines": None,
    "share90_trees": ("share90_dyadic", False),
    "share90_cosines": None,
    "share99_trees": ("share99_dyadic", False),
    "share99_cosines": None,
    "exponent_trees": ("exponent_dyadic", True),
    "exponent_shuffled": None,
    "shared_key": ("shared_key_chance", True),
    **{name: (f"{name}_control", not name.endswith("procrustes")) for name in CONTRASTS},
    **dict.fromkeys(AGREEMENT),
}


def networks_frame(store: Store, table: str) -> pl.DataFrame:
    """Return the rows of `organized` or `invariance` with the names of the networks."""
    joined = store.frame("networks").join(store.frame(table), on="content", how="inner")
    return joined.sort(*NETWORK, "options", "text", nulls_last=False)


def agreement_frame(store: Store) -> pl.DataFrame:
    """Return how well the geometries of the heads on two texts agree: one row per network, options and pair of texts.

    The texts of a network, sorted by their hashes, are taken two by two, so that the pairs are independent.
    """
    import polars as pl

    from attngeo.organization.agreement import agreement

    schema: dict[str, Any] = dict.fromkeys((*NETWORK, "options", "stage", "text", "other"), pl.String)
    schema |= dict.fromkeys(AGREEMENT, pl.Float64)
    rows = []
    for group in networks_frame(store, "organized").partition_by(*NETWORK, "options", maintain_order=True):
        texts = group.sort("text").to_dicts()
        for first, second in zip(texts[::2], texts[1::2], strict=False):
            (a, tree_a), (b, tree_b) = (_heads(store, text["part"], text["depth"]) for text in (first, second))
            if len(a) == len(b):  # else the model's number of heads depends on the input
                found = agreement(a, tree_a, b, tree_b)
                figures = {name: null_if_nan(getattr(found, name)) for name in AGREEMENT}
                rows.append(first | {"other": second["text"]} | figures)
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


def _heads(store: Store, part: str, depth: int) -> tuple[Floats, Tree]:
    """Return the affinity [heads, heads] and the tree of the heads of one network on one text."""
    from attngeo.organization.tree import Tree

    if (frame := store.read("head_pairs", part)) is None:
        path = store.path("head_pairs", part)
        raise InputError(f"{path}: is missing; organising its model again restores it")
    count = round((1 + (1 + 8 * frame.height) ** 0.5) / 2)  # pairs = count (count − 1) / 2
    above = np.triu_indices(count, 1)
    affinity = np.eye(count)
    affinity[above] = frame["affinity"].to_numpy()
    last = np.full((count, count), depth - 1)
    last[above] = frame["level"].to_numpy()
    affinity, last = np.maximum(affinity, affinity.T), np.minimum(last, last.T)
    # On each level, heads that are together have the label of the first of them.
    levels = [(last >= level).argmax(axis=1) for level in range(depth)]
    return affinity, Tree(np.stack(levels))


def summarize(store: Store) -> pl.DataFrame:
    """Return one row per network, options and figure.

    Columns: model, revision, commit, content, table, options, figure, texts (or pairs of texts), mean, low and high
    (its 95% interval), std (between texts); where the figure has a control: control (its mean), difference, low and
    high of it, and better, the share of texts on which the figure is better than its control.
    """
    import polars as pl

    numbers = ("mean", "low", "high", "std", "control", "difference", "difference_low", "difference_high", "better")
    schema: dict[str, Any] = dict.fromkeys((*NETWORK, "table", "options", "figure"), pl.String)
    schema |= {"texts": pl.Int64} | dict.fromkeys(numbers, pl.Float64)
    tables = {name: networks_frame(store, name) for name in ("organized", "invariance")}
    rows = []
    for table, frame in (tables | {"agreement": agreement_frame(store)}).items():
        for group in frame.partition_by(*NETWORK, "options", maintain_order=True):
            about = group.select(*NETWORK, "options").row(0, named=True) | {"table": table}
            rows += [about | found for figure in CONTROLS if figure in group.columns for found in _rows(group, figure)]
    return pl.DataFrame(rows, schema=schema)


def _rows(group: pl.DataFrame, figure: str) -> list[dict[str, Any]]:
    """Return the row about a figure of one network: over the texts on which it is known, none if there are none."""
    known = group.drop_nulls([figure])
    if known.is_empty():
        return []
    mean, low, high, std = _mean(known[figure])
    row = {"figure": figure, "texts": known.height, "mean": mean, "low": low, "high": high, "std": std}
    if (control := CONTROLS[figure]) is not None and (both := known.drop_nulls([control[0]])).height:
        gap = both[figure] - both[control[0]]
        difference, low, high, _ = _mean(gap)
        row |= {"control": both[control[0]].mean(), "better": ((gap > 0) if control[1] else (gap < 0)).mean()}
        row |= {"difference": difference, "difference_low": low, "difference_high": high}
    return [row]


def _mean(values: pl.Series) -> tuple[float, float | None, float | None, float | None]:
    """Return the mean of independent values, its 95% interval by Student's t, and their deviation; None for one value.

    >>> import polars as pl
    >>> [round(number, 2) for number in _mean(pl.Series([1.0, 2.0, 3.0, 4.0]))]
    [2.5, 0.45, 4.55, 1.29]
    """
    from scipy.stats import t

    numbers = values.to_numpy()
    mean, n = float(numbers.mean()), len(numbers)
    if n < 2:
        return mean, None, None, None
    std = float(numbers.std(ddof=1))
    margin = float(t.ppf(0.975, n - 1)) * std / n**0.5
    return mean, mean - margin, mean + margin, std
