"""`frequency_summary`: what the rotary pairs of each layer do, in one row per layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

FAST = 32  # tokens within which a fast pair turns once
SLOW = 4096  # tokens within which a slow pair does not turn once


def frequency_summary(frequencies: pl.DataFrame) -> pl.DataFrame:
    """Return one row per layer of `ScoreTable.frequencies`: its energy by speed, and its strongest pair.

    fast, medium, slow   mean over heads of the share of energy in pairs that turn once within FAST tokens, that need
                         more than SLOW tokens for a turn (slow), and in all others (medium)
    head, pair           the pair with the largest share of its head's energy among all heads
    share                this share
    turn                 the tokens that a turn of this pair takes, 2π/θ
    offset               the offset of the key that this pair prefers; negative: the key is before the query

    >>> import polars as pl
    >>> pairs = {"pair": [0, 1], "frequency": [1.0, 0.001], "energy": [0.25, 0.75], "preferred_offset": [-2.0, 90.0]}
    >>> table = pl.DataFrame({"model": "m", "stack": "decoder", "layer": 0, "head": 0, **pairs})
    >>> frequency_summary(table).select("fast", "medium", "slow", "pair", "offset").row(0)
    (0.25, 0.0, 0.75, 1, 90.0)
    """
    import polars as pl

    turn = 2 * math.pi / pl.col("frequency")
    speeds = {"fast": turn <= FAST, "medium": (turn > FAST) & (turn <= SLOW), "slow": turn > SLOW}
    heads = pl.col("head").n_unique()
    shares = [(pl.col("energy").filter(chosen).sum() / heads).alias(name) for name, chosen in speeds.items()]
    names = {"head": "head", "pair": "pair", "energy": "share", "turn": "turn", "preferred_offset": "offset"}
    strongest = [pl.col(name).get(pl.col("energy").arg_max()).alias(new) for name, new in names.items()]
    rows = frequencies.drop_nulls("energy").with_columns(turn=turn)
    return rows.group_by("model", "stack", "layer", maintain_order=True).agg(*shares, *strongest)
