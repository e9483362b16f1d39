"""`summarize`: the mean over texts of each figure of an organised network, its 95% interval, and its control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.atlas.columns import CONTRASTS
from attngeo.atlas.organizing.frames import STATE, agreement_frame, invariance_frame, organized_frame
from attngeo.atlas.store import Store

if TYPE_CHECKING:
    import polars as pl

    from attngeo.arrays import Floats

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
    "rank_correlation": None,
    "information": None,
    "procrustes": None,
}
_TABLES = {"organized": organized_frame, "invariance": invariance_frame, "agreement": agreement_frame}
_NUMBERS = ("mean", "low", "high", "std", "control", "difference", "difference_low", "difference_high", "better")


def summarize(store: Store) -> pl.DataFrame:
    """Return one row per network, options and figure.

    Columns: model, revision, commit, content, table, options, figure, texts (or pairs of texts), mean, low and high
    (its 95% interval), std (between texts); where the figure has a control: control (its mean), difference, low and
    high of it, and better, the share of texts on which the figure is better than its control.
    """
    import polars as pl

    schema: dict[str, Any] = dict.fromkeys((*STATE, "table", "options", "figure"), pl.String)
    schema |= {"texts": pl.Int64} | dict.fromkeys(_NUMBERS, pl.Float64)
    rows = []
    for table, read in _TABLES.items():
        for group in read(store).partition_by(*STATE, "options", maintain_order=True):
            about = group.select(*STATE, "options").row(0, named=True) | {"table": table}
            for figure in (name for name in CONTROLS if name in group.columns):
                if (found := _figure(group, figure)) is not None:
                    rows.append(about | {"figure": figure} | found)
    return pl.DataFrame(rows, schema=schema)


def _figure(group: pl.DataFrame, figure: str) -> dict[str, float | None] | None:
    """Return the statistics of one figure over the texts on which it is known; None if there is none."""
    control = CONTROLS[figure]
    known = group.drop_nulls([figure])
    if known.is_empty():
        return None
    values = known[figure].to_numpy()
    low, high = mean_interval(values)
    found: dict[str, float | None] = {
        "texts": len(values),
        "mean": float(values.mean()),
        "low": low,
        "high": high,
        "std": _std(values),
    }
    if control is None or known[control[0]].null_count() == known.height:
        return found
    both = known.drop_nulls([control[0]])
    difference = (both[figure] - both[control[0]]).to_numpy()
    low, high = mean_interval(difference)
    return found | {
        "control": float(both[control[0]].to_numpy().mean()),
        "difference": float(difference.mean()),
        "difference_low": low,
        "difference_high": high,
        "better": float((difference > 0).mean() if control[1] else (difference < 0).mean()),
    }


def mean_interval(values: Floats) -> tuple[float | None, float | None]:
    """Return the 95% interval of the mean of independent values, by Student's t; None for a single value.

    >>> low, high = mean_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> round(low, 2), round(high, 2)
    (0.45, 4.55)
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None, None
    margin = float(t.ppf(0.975, n - 1)) * float(values.std(ddof=1)) / n**0.5
    return float(values.mean()) - margin, float(values.mean()) + margin


def _std(values: Floats) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
