"""Independent and symmetric initialisations of the same scale, over the seeds that all scales of a setting share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngeo.errors import InputError
from attngeo.training.initialise import target_std
from experiments.initialisation.grid import Cell, start_settings
from experiments.initialisation.runs import FinishedRun

USUAL_STD = 0.02  # of the baseline, and of an initialisation that keeps its scale
FORMS = ("independent", "symmetric")
_FORM_OF_START = {"baseline": "independent", "independent": "independent", "symmetric": "symmetric"}


@dataclass(frozen=True)
class Scale:
    """The runs of both forms at one scale, by seed; no run where a form was not run at it."""

    std: float
    runs: dict[str, tuple[FinishedRun, ...]]  # "independent" and "symmetric" → one run per seed, in the order of seeds


def scales(runs: Iterable[FinishedRun]) -> list[Scale]:
    """Return the scales of one setting, from the smallest to the largest."""
    found: dict[tuple[float, str], dict[int, FinishedRun]] = {}
    for run in runs:
        if run.diverged is None and (form := form_and_std(run.cell)):
            found.setdefault((form[1], form[0]), {})[run.cell.seed] = run
    if not found:
        return []
    shared = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    return [
        Scale(std, {form: tuple(found[std, form][seed] for seed in shared if (std, form) in found) for form in FORMS})
        for std in sorted({std for std, _ in found})
    ]


def form_and_std(cell: Cell) -> tuple[str, float] | None:
    """Return whether a cell begins independent or symmetric, and the std of its Q and K; None: it does neither.

    >>> form_and_std(Cell("baseline", 5e-4, 0)), form_and_std(Cell("unit symmetric", 5e-4, 0, size="4x256"))
    (('independent', 0.02), ('symmetric', 0.0625))
    """
    try:
        settings = start_settings(cell.start)
    except InputError:  # an initialisation of an earlier version
        return None
    form = _FORM_OF_START.get(settings["start"])
    is_another_baseline = cell.start == "independent"  # independent at the usual scale, drawn anew
    if form is None or settings["self_bias"] or is_another_baseline:
        return None
    return form, target_std(settings["scale"], cell.width) or USUAL_STD


def is_of_chosen_std(cell: Cell) -> bool:
    """Tell whether the std of a cell was chosen as a number, as in the runs that vary the scale."""
    return cell.start.startswith("std ")
