"""What the scale of an initialisation does, as a table of the page: one line per standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.initialisation.page.plateau import plateau_text
from experiments.initialisation.page.words import difference_text, holm, p_text
from experiments.initialisation.runs import PLATEAU_END, FinishedRun
from experiments.initialisation.scales import FORMS, USUAL_STD, scales
from experiments.initialisation.statistics import Estimate, estimate
from experiments.page_tables import pipe_table

_OF_A_FORM = ("against the baseline [95%]", f"below {PLATEAU_END:g} after")
_TITLES = ("std", *(f"{form}: {what}" for form in FORMS for what in _OF_A_FORM), "symmetric minus independent [95%]",
           "p", "p (Holm)")  # fmt: skip


def scale_markdown(runs: Sequence[FinishedRun]) -> str:
    """Return both forms against the baseline and against each other, at every scale at which both were run."""
    both = [scale for scale in scales(runs) if all(scale.runs.values())]
    baseline = next((scale.runs["independent"] for scale in both if scale.std == USUAL_STD), ())
    between = [_difference(scale.runs["symmetric"], scale.runs["independent"]) for scale in both]
    adjusted = holm([one.p for one in between])
    lines = []
    for scale, one, p in zip(both, between, adjusted, strict=True):
        columns = [text for form in FORMS for text in _columns(scale.runs[form], baseline)]
        lines.append([f"{scale.std:g}", *columns, difference_text(one), p_text(one.p), p_text(p)])
    return pipe_table(_TITLES, lines)


def _difference(own: Sequence[FinishedRun], others: Sequence[FinishedRun]) -> Estimate:
    """Return the difference in final loss of runs of the same seeds in the same order."""
    return estimate([run.loss - other.loss for run, other in zip(own, others, strict=True)])


def _columns(own: Sequence[FinishedRun], baseline: Sequence[FinishedRun]) -> list[str]:
    """Return the difference from the baseline, empty for the baseline itself, and when the plateau ends."""
    against = "" if own == baseline or not baseline else difference_text(_difference(own, baseline))
    return [against, plateau_text(own)]
