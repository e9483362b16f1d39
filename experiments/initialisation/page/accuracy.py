"""The accuracy after fine-tuning, as a table of the page: means over seeds and paired differences from the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.initialisation.fine_tuning import TASKS
from experiments.initialisation.grid import Cell
from experiments.initialisation.runs import FinishedRun, grouped
from experiments.initialisation.statistics import Estimate, estimate
from experiments.page_tables import pipe_table


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy of one initialisation on one task, over the seeds that were fine-tuned."""

    cell: Cell  # of the first seed
    task: str
    seeds: tuple[int, ...]
    mean: float
    difference: Estimate | None  # minus the baseline's, over the seeds both have; None for the baseline itself


def accuracies(runs: Iterable[FinishedRun], against: str = "baseline") -> list[Accuracy]:
    """Return the accuracy of every initialisation in every setting in which runs were fine-tuned."""
    rows = []
    tuned = [run for run in runs if "fine_tuning" in run.facts]
    for same in grouped(tuned, lambda run: run.cell.setting):
        starts = {run.cell.start: {} for run in same}  # type: dict[str, dict[int, FinishedRun]]
        for run in same:
            starts[run.cell.start][run.cell.seed] = run
        for start, by_seed in starts.items():
            for task in TASKS:
                values = {seed: float(run.facts["fine_tuning"][task]) for seed, run in sorted(by_seed.items())}
                both = [seed for seed in values if seed in starts.get(against, {})]
                difference = None
                if start != against and both:
                    reference = starts[against]
                    difference = estimate(
                        [values[seed] - float(reference[seed].facts["fine_tuning"][task]) for seed in both]
                    )
                cell = by_seed[min(by_seed)].cell
                rows.append(Accuracy(cell, task, tuple(values), sum(values.values()) / len(values), difference))
    return rows


def accuracy_markdown(rows: Sequence[Accuracy], names: dict[str, str]) -> str:
    """Return the rows as a Markdown table, one line per initialisation, one pair of columns per task."""
    titles = ["initialisation", "seeds"]
    for task in TASKS:
        titles += [task, "against the baseline [95%]"]
    lines = []
    for same in grouped(rows, lambda row: row.cell.start):
        line = [names.get(same[0].cell.start, same[0].cell.start), str(len(same[0].seeds))]
        for row in same:
            line += [f"{100 * row.mean:.1f}%", "" if row.difference is None else points_text(row.difference)]
        lines.append(line)
    return pipe_table(titles, lines)


def points_text(value: Estimate) -> str:
    """Return a difference of accuracies in percentage points, with its 95% interval if it has one.

    >>> points_text(Estimate(-0.0123, -0.03, 0.0054, 0.1, 0.0))
    '−1.2 [−3.0, +0.5]'
    """
    numbers = [f"{100 * x:+.1f}".replace("-", "−") for x in (value.mean, value.low, value.high)]
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if value.low == value.low else numbers[0]
