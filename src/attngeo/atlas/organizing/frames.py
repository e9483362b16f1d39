"""The results of organised networks as data frames: one row per network and text, or per network and pair of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.atlas.columns import NETWORKS
from attngeo.atlas.store import Store
from attngeo.organization.geometry.agreement import agreement
from attngeo.organization.trees.tree import Tree
from attngeo.weights.scoring.score_table import null_if_nan

if TYPE_CHECKING:
    import polars as pl

    from attngeo.arrays import Floats

STATE = tuple(NETWORKS)  # model, revision, commit, content


def organized_frame(store: Store) -> pl.DataFrame:
    """Return the head trees and the sparsity: one row per network, options and text."""
    return _with_networks(store, "organized")


def invariance_frame(store: Store) -> pl.DataFrame:
    """Return the softmax invariance: one row per network, options and text."""
    return _with_networks(store, "invariance")


def _with_networks(store: Store, table: str) -> pl.DataFrame:
    import polars as pl

    rows = store.frame(table)
    newest = pl.col("results") == pl.col("results").max().over("content", "options", "text")
    networks = store.frame("networks").unique(maintain_order=True)
    joined = networks.join(rows.filter(newest), on="content", how="inner")
    return joined.sort(*STATE, "options", "text", nulls_last=False)


def agreement_frame(store: Store) -> pl.DataFrame:
    """Return how well the geometries of the heads on two texts agree: one row per network, options and pair of texts.

    The texts of a network, sorted by their hashes, are taken two by two, so that the pairs are independent.
    """
    import polars as pl

    figures = {"rank_correlation": pl.Float64, "information": pl.Float64, "procrustes": pl.Float64}
    schema = dict.fromkeys((*STATE, "options", "stage", "text", "other"), pl.String) | figures
    rows = []
    for group in organized_frame(store).partition_by(*STATE, "options", maintain_order=True):
        texts = group.sort("text").to_dicts()
        for first, second in zip(texts[::2], texts[1::2], strict=False):
            (a, tree_a), (b, tree_b) = (_heads(store, text["part"], text["depth"]) for text in (first, second))
            if len(a) != len(b):  # of models whose number of heads depends on the input
                continue
            found = agreement(a, tree_a, b, tree_b)
            figures_of_pair = {name: null_if_nan(getattr(found, name)) for name in figures}
            about = {name: first[name] for name in (*STATE, "options", "stage", "text")}
            rows.append(about | {"other": second["text"]} | figures_of_pair)
    return pl.DataFrame(rows, schema=schema)


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
