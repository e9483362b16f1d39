"""What the scale of an initialisation does, as a table of the page: one line per standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.initialisation.page.plateau import plateau_text
from experiments.initialisation.page.words import difference_text, holm, p_text
from experiments.initialisation.runs import PLATEAU_END, FinishedRun
from experiments.initialisation.scales import FORMS, Scale, scales
from experiments.initialisation.statistics import Estimate, compare
from experiments.page_tables import pipe_table

_OF_A_FORM = ("against the baseline [95%]", f"below {PLATEAU_END:g} after")
_TITLES = ("std", *(f"{form}: {what}" for form in FORMS for what in _OF_A_FORM), "symmetric minus independent [95%]",
           "p", "p (Holm)")  # fmt: skip


def scale_markdown(runs: Sequence[FinishedRun]) -> str:
    """Return both forms against the baseline and against each other, at every scale at which both were run."""
    both = [scale for scale in scales(runs) if all(scale.runs.values())]
    against = [_minus_independent(scale) for scale in both]
    adjusted = holm([one.p for one in against])
    lines = []
    for scale, one, p in zip(both, against, adjusted, strict=True):
        columns = [text for form in FORMS for text in _columns(scale.runs[form], runs)]
        lines.append([f"{scale.std:g}", *columns, difference_text(one), p_text(one.p), p_text(p)])
    return pipe_table(_TITLES, lines)


def _minus_independent(scale: Scale) -> Estimate:
    """Return the difference in final loss of the two forms of one scale."""
    independent, symmetric = (scale.runs[form] for form in FORMS)
    rows = compare([*independent, *symmetric], independent[0].cell.start)
    (difference,) = [row.difference for row in rows if row.difference is not None]
    return difference


def _columns(own: Sequence[FinishedRun], runs: Sequence[FinishedRun]) -> list[str]:
    """Return the difference from the baseline, empty for the baseline itself, and when the plateau ends."""
    baseline = [run for run in runs if run.cell.start == "baseline"]
    found = [row.difference for row in compare([*baseline, *own]) if row.cell.start == own[0].cell.start]
    difference = found[0]
    return ["" if difference is None else difference_text(difference), plateau_text(own)]
