"""The table of changes: one row per layer and head that both models have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.applications.compare.change.form_change import FormChange, head_changes, layer_change
from attngeo.applications.compare.change.layer_pairs import LayerPair
from attngeo.io.tables import table_of
from attngeo.weights.scoring.layer import LayerFactors
from attngeo.weights.scoring.score import layer_rows
from attngeo.weights.scoring.score_table import Row, null_if_nan

if TYPE_CHECKING:
    import polars as pl

# The scores whose change is given, where both models have them.
SCORES = (
    "symmetry",
    "directionality",
    "symmetry_rope",
    "directionality_rope",
    "dominance",
    "self_attending",
    "rank_symmetric",
    "rank_skew",
    "norm",
)

# Column → polars type. A score stands beside its change, score of B − score of A.
COLUMNS = {
    "stack": "String",
    "layer": "Int64",
    "head": "Int64",  # null in the rows of layer forms
    "change": "Float64",  # ‖M_A − M_B‖/‖M_A‖
    "cosine": "Float64",  # of M_A and M_B
    "match": "Int64",  # the head of B that the best assignment of the layer's heads gives this head
    "match_cosine": "Float64",  # the cosine with that head
} | {name: "Float64" for score in SCORES for name in (score, f"{score}_change")}


def change_rows(pair: LayerPair, a: LayerFactors, b: LayerFactors) -> tuple[list[Row], list[float], list[float]]:
    """Return the rows of one layer, the layer form first, and the norms ‖M‖ of all heads of either model.

    Where the head count of either model is unknown, the whole layer is the one head of both.
    """
    rows_a, rows_b = (layer_rows(side) for side in (pair.a, pair.b))
    forms = slice(1, None) if pair.heads_known else slice(1)
    norms_a, norms_b = ([row["norm"] for row in rows[forms]] for rows in (rows_a, rows_b))
    labelled = pair.heads
    rows = [_row(pair, None, rows_a[0], rows_b[0], layer_change(a, b, (rows_a[0]["norm"], rows_b[0]["norm"])))]
    pairs = [(i, j) for _, i, j in labelled]
    changes = head_changes(a, b, pairs, [(norms_a[i], norms_b[j]) for i, j in pairs])
    for (label, i, j), change in zip(labelled, changes, strict=True):
        rows.append(_row(pair, label, rows_a[1 + i], rows_b[1 + j], change))
    return rows, norms_a, norms_b


def change_frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Return the rows as a frame with the columns COLUMNS; a missing key becomes null."""
    return table_of(rows, COLUMNS)


def _row(pair: LayerPair, head: int | None, of_a: Row, of_b: Row, change: FormChange) -> Row:
    row: Row = {"stack": pair.a.stack, "layer": pair.a.layer, "head": head}
    row |= {"change": null_if_nan(change.change), "cosine": null_if_nan(change.cosine)}
    for score in SCORES:
        before, after = of_a.get(score), of_b.get(score)
        row[score] = before
        row[f"{score}_change"] = after - before if before is not None and after is not None else None
    return row
