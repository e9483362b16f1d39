"""What an atlas says about organised networks: per text, per pair of texts, and as means over texts.

networks_frame    one row per network, options and text
agreement_frame   how well the geometries of the heads on two texts agree
summarize         the mean of each figure over texts, its 95% interval, and its control
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.atlas.store import CONTRASTS, TABLES, Store
from attngeo.organization.agreement import agreement
from attngeo.organization.tree import Tree
from attngeo.weights.scoring.score_table import null_if_nan

if TYPE_CHECKING:
    import polars as pl

    from attngeo.arrays import Floats

STATE = tuple(TABLES["networks"])  # model, revision, commit, content
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
    networks = store.frame("networks").unique(maintain_order=True)
    joined = networks.join(store.frame(table), on="content", how="inner")
    return joined.sort(*STATE, "options", "text", nulls_last=False)


def agreement_frame(store: Store) -> pl.DataFrame:
    """Return how well the geometries of the heads on two texts agree: one row per network, options and pair of texts.

    The texts of a network, sorted by their hashes, are taken two by two, so that the pairs are independent.
    """
    import polars as pl

    schema: dict[str, Any] = dict.fromkeys((*STATE, "options", "stage", "text", "other"), pl.String)
    schema |= dict.fromkeys(AGREEMENT, pl.Float64)
    rows = []
    for group in networks_frame(store, "organized").partition_by(*STATE, "options", maintain_order=True):
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
    frame = store.head_pairs(part)
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
    schema: dict[str, Any] = dict.fromkeys((*STATE, "table", "options", "figure"), pl.String)
    schema |= {"texts": pl.Int64} | dict.fromkeys(numbers, pl.Float64)
    tables = {name: networks_frame(store, name) for name in ("organized", "invariance")}
    rows = []
    for table, frame in (tables | {"agreement": agreement_frame(store)}).items():
        for group in frame.partition_by(*STATE, "options", maintain_order=True):
            about = group.select(*STATE, "options").row(0, named=True) | {"table": table}
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
