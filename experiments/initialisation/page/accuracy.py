"""The accuracy after fine-tuning, as a table of the page: means over seeds and paired differences from the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.initialisation.fine_tuning import TASKS
from experiments.initialisation.grid import Cell
from experiments.initialisation.page.words import holm, p_text
from experiments.initialisation.runs import FinishedRun, grouped
from experiments.initialisation.statistics import Estimate, estimate
from experiments.page_tables import pipe_table

BOTH = "mean of both, post hoc"
_TITLES = ("initialisation", "task", "seeds", "accuracy", "against the baseline [95%]", "p", "p (Holm)")


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
            for task in (*TASKS, BOTH):
                values = {seed: task_accuracy(run, task) for seed, run in sorted(by_seed.items())}
                both = [seed for seed in values if seed in starts.get(against, {})]
                difference = None
                if start != against and both:
                    reference = starts[against]
                    difference = estimate([values[seed] - task_accuracy(reference[seed], task) for seed in both])
                cell = by_seed[min(by_seed)].cell
                rows.append(Accuracy(cell, task, tuple(values), sum(values.values()) / len(values), difference))
    return rows


def task_accuracy(run: FinishedRun, task: str) -> float:
    """Return the test accuracy of a run that was fine-tuned, of one task or the mean of both."""
    tuned = run.facts["fine_tuning"]
    return sum(float(tuned[one]) for one in TASKS) / len(TASKS) if task == BOTH else float(tuned[task])


def accuracy_markdown(rows: Sequence[Accuracy], names: Mapping[str, str]) -> str:
    """Return the rows as a Markdown table, with p-values adjusted for all of its single tasks.

    The mean of both tasks was looked at after the single tasks, so its p-value is not among the adjusted ones.
    """
    single = iter(holm([row.difference.p for row in rows if row.task in TASKS and row.difference is not None]))
    lines = []
    for row in rows:
        line = [names.get(row.cell.start, row.cell.start), row.task, str(len(row.seeds)), f"{100 * row.mean:.1f}%"]
        if row.difference is not None:
            line += [points_text(row.difference), p_text(row.difference.p)]
            line += [p_text(next(single)) if row.task in TASKS else ""]
        lines.append([*line, "", "", ""][: len(_TITLES)])
    return pipe_table(_TITLES, lines)


def points_text(value: Estimate) -> str:
    """Return a difference of accuracies in percentage points, with its 95% interval if it has one.

    >>> points_text(Estimate(-0.0123, -0.03, 0.0054, 0.1, 0.0))
    '−1.2 [−3.0, +0.5]'
    """
    numbers = [f"{100 * x:+.1f}".replace("-", "−") for x in (value.mean, value.low, value.high)]
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if value.low == value.low else numbers[0]
