"""The tables of `RESULTS.md`: medians over heads and seeds, made from the logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from experiments.page_tables import pipe_table
from experiments.updates.records import Row

_Value = Callable[[Row], float | None]


def _two_decimals(value: float) -> str:
    return _without_zero_sign(f"{value:.2f}")


def _millionths(value: float) -> str:
    return _without_zero_sign(f"{1e6 * value:.0f}")


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
_KINDS = {"same position": "position", "same token": "token", "other pairs": "rest"}


def _growth(part: str) -> _Value:
    """Return the growth of one part of a form from all pairs together."""
    return lambda row: _sum([row.get(f"growth_{part}_{kind}") for kind in _KINDS.values()])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_GROWTH: dict[str, _Value] = {
    f"{sign}, {words}": value
    for sign, part in (("‖M_s‖²", "symmetric"), ("‖M_a‖²", "skew"))
    for words, value in (
        *((words, _column(f"growth_{part}_{kind}")) for words, kind in _KINDS.items()),
        ("all pairs", _growth(part)),
    )
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
    made |= _where_complete("growth", rows, _GROWTH, ("‖M_s‖², all pairs", "‖M_a‖², all pairs"), _millionths)
    return made | _where_complete("persistence", rows, _PERSISTENCE, ("symmetric parts", "skew parts"))


def _where_complete(
    name: str,
    rows: Sequence[Row],
    columns: dict[str, _Value],
    compared: tuple[str, str],
    write: Callable[[float], str] = _two_decimals,
) -> dict[str, str]:
    """Return a table by objective and step, or none where a head was not measured; at step 0 nothing has moved yet.

    compared: columns of the symmetric and of the skew part; the last one counts the heads in which the first is larger
    """
    lines = []
    for objective in dict.fromkeys(row["objective"] for row in rows):
        some = [row for row in rows if row["objective"] == objective and row["step"]]
        if any(value(row) is None for row in some for value in columns.values()):
            return {}
        for step in sorted({row["step"] for row in some}):
            at_step = _at(some, step)
            medians = (_medians(at_step, value, write) for value in columns.values())
            lines.append(
                [objective, f"{step:,}", *medians, _larger(at_step, columns[compared[0]], columns[compared[1]])]
            )
    heading = ["objective", "step", *columns, "heads with more of the symmetric part"]
    return {f"updates, {name}": pipe_table(heading, lines)}


def _larger(rows: Sequence[Row], first: _Value, second: _Value) -> str:
    """Return in how many rows the first value is larger than the second."""
    pairs = [(one, two) for row in rows if (one := first(row)) is not None and (two := second(row)) is not None]
    return f"{sum(one > two for one, two in pairs)} of {len(pairs)}"


def _at(rows: Sequence[Row], step: int) -> list[Row]:
    return [row for row in rows if row["step"] == step]


def _medians(rows: Sequence[Row], value: _Value, write: Callable[[float], str] = _two_decimals) -> str:
    """Return the median over heads and seeds, by default with two decimals; empty where there is no value."""
    known = [found for row in rows if (found := value(row)) is not None]
    return write(median(known)).replace("-", "−") if known else ""
