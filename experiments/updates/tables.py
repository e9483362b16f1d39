"""The tables of `docs/gradients.md` over training: medians over heads and seeds, made from the logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from experiments.page_tables import pipe_table
from experiments.updates.measure import Row

_Value = Callable[[Row], float | None]


def _two_decimals(value: float) -> str:
    return _without_zero_sign(f"{value:.2f}")


def _millionths(value: float) -> str:
    return _without_zero_sign(f"{1e6 * value:.1f}")


def _without_zero_sign(number: str) -> str:
    return number if float(number) else number.removeprefix("-")


def _column(name: str) -> _Value:
    return lambda row: row.get(name)


def _variance_ratio(row: Row) -> float | None:
    """Return how much more the column norms of M(t) − M(0) vary than its row norms."""
    rows, columns = row.get("since_start_row_variance"), row.get("since_start_column_variance")
    return columns / rows if rows and columns is not None else None


_PAIRING: dict[str, _Value] = {
    "pairing of β": _column("pairing_split"),
    "the same, shuffled": _column("pairing_shuffled"),
}
_COLUMNS: dict[str, _Value] = {
    "symmetry of the update": _column("symmetry_split"),
    "the same, shuffled": _column("symmetry_shuffled"),
    "symmetry of the next 50 steps": _column("moved_symmetry"),
    "symmetry of M(t) − M(0)": _column("since_start_symmetry"),
    "column over row variance of M(t) − M(0)": _variance_ratio,
}
_GROWTH: dict[str, _Value] = {
    f"{sign}, {words}": _column(f"growth_{part}_{kind}")
    for sign, part in (("‖M_s‖²", "symmetric"), ("‖M_a‖²", "skew"))
    for words, kind in (("same position", "position"), ("same token", "token"), ("other pairs", "rest"))
}
_PERSISTENCE: dict[str, _Value] = {
    "symmetric parts": _column("persistence_symmetric"),
    "skew parts": _column("persistence_skew"),
}


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return a table by step for each objective, one of single layers, and growth and persistence where measured."""
    made = {}
    for objective in dict.fromkeys(row["objective"] for row in rows):
        some = [row for row in rows if row["objective"] == objective]
        columns = list(_COLUMNS.items())
        if objective == "masked":
            columns = [*_PAIRING.items(), *columns]
        steps = sorted({row["step"] for row in some})
        lines = [[f"{step:,}", *(_medians(_at(some, step), value) for _, value in columns)] for step in steps]
        made[f"updates, {objective}"] = pipe_table(["step", *(name for name, _ in columns)], lines)
    layers = sorted({row["layer"] for row in rows})
    lines = []
    for objective, name, value in (
        ("masked", "pairing of β", _PAIRING["pairing of β"]),
        ("masked", "symmetry of M(t) − M(0)", _COLUMNS["symmetry of M(t) − M(0)"]),
        ("causal", "column over row variance of M(t) − M(0)", _variance_ratio),
    ):
        some = [row for row in rows if row["objective"] == objective]
        for step in sorted({row["step"] for row in some} - {0}):
            parts = [[row for row in _at(some, step) if row["layer"] == layer] for layer in layers]
            lines.append([objective, name, f"{step:,}", *(_medians(part, value) for part in parts)])
    made["updates, layers"] = pipe_table(["objective", "", "step", *(f"layer {layer}" for layer in layers)], lines)
    made |= _where_complete("growth", rows, _GROWTH, _millionths)
    return made | _where_complete("persistence", rows, _PERSISTENCE)


def _where_complete(
    name: str, rows: Sequence[Row], columns: dict[str, _Value], write: Callable[[float], str] = _two_decimals
) -> dict[str, str]:
    """Return a table by objective and step, or none where a head was not measured; at step 0 nothing has moved yet."""
    lines = []
    for objective in dict.fromkeys(row["objective"] for row in rows):
        some = [row for row in rows if row["objective"] == objective and row["step"]]
        if any(value(row) is None for row in some for value in columns.values()):
            return {}
        for step in sorted({row["step"] for row in some}):
            at_step = _at(some, step)
            lines.append([objective, f"{step:,}", *(_medians(at_step, value, write) for value in columns.values())])
    return {f"updates, {name}": pipe_table(["objective", "step", *columns], lines)}


def _at(rows: Sequence[Row], step: int) -> list[Row]:
    return [row for row in rows if row["step"] == step]


def _medians(rows: Sequence[Row], value: _Value, write: Callable[[float], str] = _two_decimals) -> str:
    """Return the median over heads and seeds, by default with two decimals; empty where there is no value."""
    known = [found for row in rows if (found := value(row)) is not None]
    return write(median(known)).replace("-", "−") if known else ""
