"""Pairs of initialisations that differ in one property, as a table of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.initialisation.page.words import difference_text, holm, p_text, rate_text
from experiments.initialisation.runs import FinishedRun
from experiments.initialisation.statistics import Comparison, compare, equivalence_p
from experiments.page_tables import pipe_table

MARGIN = 0.02  # nats; a third of the difference between symmetric and independent at 5e-4


@dataclass(frozen=True)
class Contrast:
    """Two initialisations and the property that one of them has and the other has not."""

    start: str
    against: str
    differs_in: str


MECHANISM = (
    Contrast("unit indefinite", "unit independent", "symmetric"),
    Contrast("unit independent with self-bias", "unit independent", "attends to itself"),
    Contrast("unit symmetric", "unit independent", "both"),
    Contrast("unit symmetric", "unit indefinite", "attends to itself"),
    Contrast("unit symmetric", "unit independent with self-bias", "symmetric"),
    Contrast("unit symmetric", "unit skewed", "no skew part, smaller ‖M‖"),
    Contrast("unit symmetric", "unit small-skewed", "no skew part, equal ‖M‖"),
    Contrast("unit large-symmetric", "unit skewed", "no skew part, equal ‖M‖"),
)


def found_contrasts(
    runs: Sequence[FinishedRun], contrasts: Sequence[Contrast]
) -> list[tuple[Contrast, Comparison, float]]:
    """Return the contrasts of which both sides were run, at each learning rate, with p-values adjusted for all."""
    found: list[tuple[Contrast, Comparison]] = []
    for rate in sorted({run.cell.lr for run in runs}):
        some = [run for run in runs if run.cell.lr == rate]
        for contrast in contrasts:
            found += [
                (contrast, one)
                for one in compare(some, contrast.against)
                if one.cell.start == contrast.start and one.difference is not None
            ]
    adjusted = holm([math.nan if one.difference is None else one.difference.p for _, one in found])
    return [(contrast, one, p) for (contrast, one), p in zip(found, adjusted, strict=True)]


def contrast_markdown(runs: Sequence[FinishedRun], contrasts: Sequence[Contrast], names: Mapping[str, str]) -> str:
    """Return one line per learning rate and contrast of which both sides were run; empty if there is none."""
    lines = [_line(*one, names) for one in found_contrasts(runs, contrasts)]
    titles = ("learning rate", "initialisation", "minus", "has, and the other has not", "seeds", "difference [95%]",
              "p", "p (Holm)", f"p beyond ±{MARGIN:g}")  # fmt: skip
    return pipe_table(titles, lines) if lines else ""


def _line(contrast: Contrast, one: Comparison, adjusted: float, names: Mapping[str, str]) -> list[str]:
    assert one.difference is not None
    return [
        rate_text(one.cell.lr),
        names.get(contrast.start, contrast.start),
        names.get(contrast.against, contrast.against),
        contrast.differs_in,
        str(len(one.seeds)),
        difference_text(one.difference),
        p_text(one.difference.p),
        p_text(adjusted),
        p_text(equivalence_p(one.differences, MARGIN)),
    ]
