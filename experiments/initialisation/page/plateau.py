"""When the loss leaves its first plateau, as a table of the page: one line per initialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.initialisation.page.words import loss_text, rate_text
from experiments.initialisation.runs import PLATEAU_END, FinishedRun
from experiments.page_tables import pipe_table


def plateau_markdown(
    runs: Sequence[FinishedRun],
    starts: Sequence[str],
    rates: Sequence[float],
    names: Mapping[str, str],
    below: float = PLATEAU_END,
) -> str:
    """Return the mean final loss and the first evaluation with a loss below `below`, over seeds, at each rate."""
    titles = [
        f"{rate_text(rate)}: {what}" for rate in rates for what in ("seeds", "final loss", f"below {below:g} after")
    ]
    lines = []
    for start in starts:
        own = [[run for run in runs if (run.cell.start, run.cell.lr) == (start, rate)] for rate in rates]
        if any(own):
            lines.append([names.get(start, start), *(text for same in own for text in _columns(same, below))])
    return pipe_table(["initialisation", *titles], lines)


def _columns(runs: Sequence[FinishedRun], below: float) -> list[str]:
    """Return the number of seeds, their mean final loss and the range of the steps."""
    if not runs:
        return ["", "", ""]
    loss = sum(run.loss for run in runs) / len(runs)
    return [str(len(runs)), loss_text(loss), plateau_text(runs, below)]


def plateau_text(runs: Sequence[FinishedRun], below: float = PLATEAU_END) -> str:
    """Return the range over seeds of the first evaluation with a loss below `below`."""
    steps = [run.first_below(below) for run in runs]
    reached = sorted(step for step in steps if step is not None)
    texts = [f"{reached[0]:,}", f"{reached[-1]:,}"] if reached else []
    if len(reached) < len(steps):
        texts = [*texts[:1], "never"]
    return " to ".join(dict.fromkeys(texts))
