"""The forms at the end of training, as a table of the page: scores of every layer, means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.initialisation.page.words import rate_text
from experiments.initialisation.runs import FinishedRun, grouped
from experiments.page_tables import pipe_table

_SCORES = {
    "symmetry": "symmetry of the layers",
    "symmetry_rope": "over all offsets",
    "directionality": "directionality of the layers",
    "directionality_rope": "over all offsets",
}


def form_markdown(runs: Sequence[FinishedRun], names: Mapping[str, str]) -> str:
    """Return one line per architecture, learning rate and initialisation, in the order in which they come."""
    lines = []
    for same in grouped(runs, lambda run: (run.cell.setting, run.cell.start)):
        cell = same[0].cell
        name = [f"{cell.model}, {cell.objective}", rate_text(cell.lr), names.get(cell.start, cell.start)]
        lines.append([*name, str(len(same)), *(_means(same, score) for score in _SCORES)])
    return pipe_table(["architecture", "learning rate", "initialisation", "seeds", *_SCORES.values()], lines)


def _means(runs: Sequence[FinishedRun], score: str) -> str:
    """Return the mean of a score at the last evaluation, layer by layer."""
    values = [run.records[-1].get(score) for run in runs]
    if any(value is None for value in values):
        return ""
    means = (sum(layer) / len(layer) for layer in zip(*values, strict=True))
    return ", ".join(f"{mean:.2f}".replace("-", "−") for mean in means)
