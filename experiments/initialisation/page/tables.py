"""The tables of `RESULTS.md`, made from the logs: `python -m experiments.initialisation page`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.initialisation.grid import GROUPS, Cell
from experiments.initialisation.own_rate import at_best_rates, best_rates
from experiments.initialisation.page.accuracy import Accuracy, accuracies, accuracy_markdown
from experiments.initialisation.page.contrasts import MECHANISM, contrast_markdown
from experiments.initialisation.page.forms import form_markdown
from experiments.initialisation.page.plateau import plateau_markdown
from experiments.initialisation.page.scale import scale_markdown
from experiments.initialisation.page.words import difference_text, holm, loss_text, p_text, rate_text, saved_text
from experiments.initialisation.runs import PLATEAU_END, FinishedRun
from experiments.initialisation.scales import is_of_chosen_std
from experiments.initialisation.statistics import Comparison, compare
from experiments.page_tables import pipe_table, replace_tables

Row = TypeVar("Row", Comparison, Accuracy, FinishedRun)

_NAMES = {
    "baseline": "baseline (std 0.02, independent)",
    "symmetric": "symmetric, scale kept",
    "unit independent": "unit scale, independent",
    "unit symmetric": "unit scale, symmetric",
    "half-unit symmetric": "half unit scale, symmetric",
    "unit skewed": "unit skewed, W_q = W_k(I + tS)",
    "unit self-attending": "unit self-attending, W_q W_kᵀ + aI",
    "unit rotated": "unit rotated, W_q = W_k R",
    "unit negative": "unit negative, W_q = −W_k",
    "unit indefinite": "unit indefinite, W_q = W_k D",
    "unit independent with self-bias": "unit independent with a self-bias",
    "unit small-skewed": "unit skewed, scaled down",
    "unit large-symmetric": "unit symmetric, scaled up",
    "authors": "the authors' recipe",
    "mimetic-0.3": "mimetic 0.3",
    "mimetic-0.7": "mimetic 0.7",
    "mimetic-0.3-value": "mimetic 0.3 with the value part",
    "mimetic-0.7-value": "mimetic 0.7 with the value part",
}
_TITLES = ("learning rate", "initialisation", "seeds", "final loss", "against the baseline [95%]", "p", "p (Holm)",
           "steps saved [95%]", "reached")  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Which comparisons a table holds: all of these settings and initialisations that were run, in this order."""

    rates: tuple[float, ...]
    starts: tuple[str, ...]
    steps: int = 9_500
    size: str = "4x256"
    objective: str = "masked"
    other: Mapping[str, object] | None = None

    def rows(self, measured: Iterable[Row]) -> list[Row]:
        """Return those of the comparisons, accuracies or runs that belong to the table, in its order."""
        found: dict[tuple[float, str], list[Row]] = {}
        for one in measured:
            if self.has_setting_of(one.cell):
                found.setdefault((one.cell.lr, one.cell.start), []).append(one)
        return [one for rate in self.rates for start in self.starts for one in found.get((rate, start), ())]

    def has_setting_of(self, cell: Cell) -> bool:
        """Tell whether a cell belongs to the table, whatever its learning rate is."""
        setting = (cell.steps, cell.size, cell.objective, cell.other)
        other = tuple(sorted((self.other or {}).items()))
        return setting == (self.steps, self.size, self.objective, other) and cell.start in self.starts


_CORE = ("baseline", "symmetric", "unit independent", "unit symmetric", "authors", "mimetic-0.3", "mimetic-0.7",
         "mimetic-0.3-value", "mimetic-0.7-value")  # fmt: skip
_CONTROLS = (
    "unit symmetric",
    "unit skewed",
    "unit self-attending",
    "unit rotated",
    "unit independent",
    "unit negative",
)
_LARGE = ("baseline", "unit independent", "unit symmetric", "unit skewed")
_ARMS = ("baseline", "unit independent", "unit symmetric")
_MODERN_ARMS = (*_ARMS, "half-unit symmetric")
_TWO_ARMS = ("baseline", "unit symmetric")
_MODERN = {"architecture": "modernbert"}
_LLAMA = {"architecture": "llama"}
_PRE_NORM = {"norm": "pre"}
TABLES: dict[str, Table] = {
    "initialisations": Table((2e-4, 5e-4), _CORE),
    "lowest rate": Table((5e-5,), ("baseline", "unit symmetric", "authors"), steps=21_000),
    "large": Table((2e-4,), _LARGE, steps=2_300, size="12x768"),
    "large, longer": Table((5e-4,), _LARGE, steps=8_000, size="12x768", other={"warmup": 1_000}),
    "controls": Table((5e-4, 2e-4), _CONTROLS),
    "causal": Table((5e-4,), _TWO_ARMS, objective="causal"),
    "tuned rate": Table((5e-4, 1e-3, 2e-3, 4e-3), _ARMS),
    "modernbert": Table((5e-4, 1e-3, 2e-3, 4e-3, 8e-3), _MODERN_ARMS, other=_MODERN),
    "modernbert, large screening": Table((5e-4, 1e-3), _TWO_ARMS, steps=1_500, size="12x768", other=_MODERN),
    "modernbert, large": Table((5e-4,), _TWO_ARMS, steps=5_000, size="12x768", other=_MODERN),
    "largest, lower rates": Table(
        (1e-4, 2e-4), _TWO_ARMS, steps=600, size="24x1024", other={"evaluations": 15, "warmup": 400}
    ),
    "pre-norm": Table((1e-3,), _ARMS, other=_PRE_NORM),
    "causal, higher rate": Table((1e-3,), _ARMS, objective="causal"),
    "llama": Table((1e-3,), _ARMS, objective="causal", other=_LLAMA),
}
# Every initialisation at the learning rate that was best for it.
OWN_RATE_TABLES: dict[str, Table] = {"modernbert, own rates": Table((2e-3,), _MODERN_ARMS, other=_MODERN)}
# Forms at the end of training, of every architecture.
FORM_TABLES: dict[str, tuple[Table, ...]] = {
    "forms": (
        Table((2e-3,), _TWO_ARMS),
        Table((1e-3,), _TWO_ARMS, other=_PRE_NORM),
        Table((2e-3,), _TWO_ARMS, other=_MODERN),
        Table((1e-3,), _TWO_ARMS, objective="causal"),
        Table((1e-3,), _TWO_ARMS, objective="causal", other=_LLAMA),
    )
}
# Accuracy after fine-tuning, at the best learning rate of the baseline.
ACCURACY_TABLES: dict[str, Table] = {
    "accuracy": Table((2e-3,), _ARMS),
    "modernbert, accuracy": Table((2e-3,), _MODERN_ARMS, other=_MODERN),
    "modernbert, large accuracy": Table((5e-4,), _TWO_ARMS, steps=5_000, size="12x768", other=_MODERN),
}
# The same, every initialisation after training at its own best rate.
OWN_RATE_ACCURACY_TABLES: dict[str, Table] = {
    "modernbert, accuracy at own rates": Table((2e-3,), _TWO_ARMS, other=_MODERN)
}
# Pairs that differ in one property.
CONTRAST_TABLES: dict[str, Table] = {
    "mechanism": Table((2e-4, 5e-4), tuple({name for pair in MECHANISM for name in (pair.start, pair.against)}))
}
# When the loss leaves its plateau, roughly from the slowest initialisation to the fastest.
PLATEAU_TABLES: dict[str, Table] = {
    "plateau": Table(
        (2e-4, 5e-4),
        ("unit negative", "baseline", "unit independent with self-bias", "unit independent", "unit rotated",
         "unit indefinite", "unit small-skewed", "unit skewed", "unit symmetric", "unit self-attending",
         "unit large-symmetric"),
    ),
    # These runs end at the first loss below `until_loss`.
    "largest": Table((5e-4,), _TWO_ARMS, steps=8_000, size="24x1024", other={"until_loss": 5.0, "warmup": 1_000}),
}  # fmt: skip
# Independent and symmetric at the same scale. Half the unit scale is not among them: it was run for ModernBERT only.
SCALE_TABLES: dict[str, Table] = {
    "scale": Table((5e-4,), ("baseline", "symmetric", *(cell.start for cell in GROUPS["scale"])))
}


def tables(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return every table as Markdown; one that has nothing to compare is left out. Diverged runs are in no mean."""
    compared, tuned = compare(runs), accuracies(runs)
    runs = [run for run in runs if run.diverged is None]
    losses = {name: table.rows(compared) for name, table in TABLES.items()}
    accuracy = {name: table.rows(tuned) for name, table in ACCURACY_TABLES.items()}
    made = {name: _markdown(rows) for name, rows in losses.items() if any(row.difference for row in rows)}
    for name, table in OWN_RATE_TABLES.items():
        some = [run for run in runs if table.has_setting_of(run.cell)]
        if "baseline" in (rates := best_rates(some)):
            made[name] = _markdown(table.rows(compare(at_best_rates(some))), rates)
    for name, table in OWN_RATE_ACCURACY_TABLES.items():
        some = [run for run in runs if table.has_setting_of(run.cell)]
        if "baseline" in best_rates(some) and (rows := table.rows(accuracies(at_best_rates(some)))):
            made[name] = accuracy_markdown(rows, _NAMES)
    for name, parts in FORM_TABLES.items():
        if some := [run for table in parts for run in table.rows(runs)]:
            made[name] = form_markdown(some, _NAMES)
    for name, table in CONTRAST_TABLES.items():
        some = [run for run in runs if run.cell.lr in table.rates and table.has_setting_of(run.cell)]
        if text := contrast_markdown(some, MECHANISM, _NAMES):
            made[name] = text
    for name, table in PLATEAU_TABLES.items():
        if some := [run for run in runs if table.has_setting_of(run.cell)]:
            below = some[0].cell.until_loss or PLATEAU_END
            made[name] = plateau_markdown(some, table.starts, table.rates, _NAMES, below)
    for name, table in SCALE_TABLES.items():
        some = table.rows(runs)
        if any(is_of_chosen_std(run.cell) for run in some):
            made[name] = scale_markdown(some)
    return made | {name: accuracy_markdown(rows, _NAMES) for name, rows in accuracy.items() if rows}


def with_tables(page: str, runs: Sequence[FinishedRun]) -> str:
    """Return the page with its tables made anew from the runs."""
    return replace_tables(page, tables(runs), "finished runs")


def _markdown(rows: Sequence[Comparison], rates: Mapping[str, float] | None = None) -> str:
    """Return comparisons as Markdown.

    rates: initialisation → learning rate to print in place of that of the cell
    """
    adjusted = holm([math.nan if one.difference is None else one.difference.p for one in rows])
    lines = [
        list(_TITLES),
        *(_row(one, p, (rates or {}).get(one.cell.start)) for one, p in zip(rows, adjusted, strict=True)),
    ]
    filled = [any(column[1:]) for column in zip(*lines, strict=True)]
    lines = [[text for text, keep in zip(line, filled, strict=True) if keep] for line in lines]
    return pipe_table(lines[0], lines[1:])


def _row(one: Comparison, adjusted: float, rate: float | None) -> list[str]:
    row = [
        rate_text(rate or one.cell.lr),
        _NAMES.get(one.cell.start, one.cell.start),
        str(len(one.seeds)),
        loss_text(one.loss) if one.losses else "",
    ]
    if one.difference is None or one.saved is None:
        return [*row, "", "", "", "", ""]
    saved = saved_text(one.saved) if one.reached else "not reached"
    reached = f"{one.reached}/{len(one.seeds)}"
    return [*row, difference_text(one.difference), p_text(one.difference.p), p_text(adjusted), saved, reached]
