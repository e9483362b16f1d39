"""Write the results of the initialisation experiment to a folder: the comparison as tables, the runs as figures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import InputError
from attngeo.io.files import write_errors, write_file
from attngeo.show.matplotlib import save_figure
from experiments.initialisation.figures import (
    architecture_figure,
    form_figure,
    loss_figure,
    saved_figure,
    scale_figure,
)
from experiments.initialisation.runs import FinishedRun, grouped
from experiments.initialisation.scales import is_of_chosen_std
from experiments.initialisation.statistics import compare
from experiments.initialisation.table import as_csv, as_markdown, as_text, forms_as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Controls, and runs that vary the scale, have figures of their own: in one with all other initialisations the curves
# could not be told apart.
_CONTROLS = {
    "controls": ("unit rotated", "unit self-attending", "unit skewed", "unit negative"),
    "mechanism": (
        "unit indefinite",
        "unit independent with self-bias",
        "unit small-skewed",
        "unit large-symmetric",
    ),
}
_MAX_ARCHITECTURES = 3  # in a figure of forms, where one with rotary embedding has two columns
_BESIDE_CONTROLS = ("baseline", "unit independent", "unit symmetric")


def write_report(runs: Sequence[FinishedRun], folder: Path, against: str = "baseline") -> list[Path]:
    """Write figures as .png and .pdf, the comparison as table.txt, .md and .csv, and form.csv; return the paths.

    against: the initialisation that the others are compared with
    """
    converged = [run for run in runs if run.diverged is None]
    if not converged:
        raise InputError(f"{folder}: no finished runs to draw")
    table = compare(runs, against)
    content = {
        "table.txt": as_text(table).encode() + b"\n",
        "table.md": as_markdown(table).encode() + b"\n",
        "table.csv": as_csv(table).encode() + b"\n",
        "form.csv": forms_as_csv(converged).encode() + b"\n",
    }
    all_controls = {start for starts in _CONTROLS.values() for start in starts} - {against}
    main = [run for run in converged if run.cell.start not in all_controls and not is_of_chosen_std(run.cell)]
    for part in grouped(main, lambda run: (run.cell.objective, run.cell.size)):
        content |= _images(f"losses-{part[0].cell.objective}-{part[0].cell.size}", loss_figure(part, against))
    if any(comparison.saved is not None for comparison in table):
        content |= _images("saved", saved_figure(table))
        content |= _images("architectures", architecture_figure(converged, against))
    for name, starts in _CONTROLS.items():
        controls = [run for run in converged if run.cell.start in starts]
        if controls:
            settings = {run.cell.setting for run in controls}
            known = {*_BESIDE_CONTROLS, against} - {*starts}
            beside = [run for run in main if run.cell.start in known and run.cell.setting in settings]
            content |= _images(name, loss_figure([*beside, *controls], against))
    for part in grouped(converged, lambda run: run.cell.setting):
        if any(is_of_chosen_std(run.cell) for run in part):
            content |= _images(f"scale-{part[0].cell.setting_key}", scale_figure(part))
    for start in ("baseline", "unit symmetric"):
        for part in _grouped_for_forms(run for run in converged if run.cell.start == start):
            content |= _images(f"{_form_name(part)}-{start.replace(' ', '-')}", form_figure(part))
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            write_file(folder / name, data)
    return [folder / name for name in content]


def _grouped_for_forms(runs: Iterable[FinishedRun]) -> list[list[FinishedRun]]:
    """Return lists of runs that differ in objective, architecture and seed only.

    Where there are too many architectures for one figure, encoders and decoders are apart.
    """
    parts = []
    for part in grouped(runs, lambda run: (run.cell.size, run.cell.lr, run.cell.steps, run.cell.without_model().other)):
        is_wide = len({run.cell.place for run in part}) > _MAX_ARCHITECTURES
        parts += grouped(part, lambda run: run.cell.objective) if is_wide else [part]
    return parts


def _form_name(runs: Sequence[FinishedRun]) -> str:
    """Return the name of a figure of forms, with the objective where all runs share it."""
    cell = runs[0].cell.without_model()
    objectives = {run.cell.objective for run in runs}
    objective = f"-{cell.objective}" if len(objectives) == 1 else ""
    return f"form-{cell.size}-lr{cell.lr:g}-{cell.steps}{cell.suffix}{objective}"


def _images(name: str, figure: Figure) -> dict[str, bytes]:
    """Return a figure as PNG, for pages, and as PDF, for print."""
    images = {}
    for kind in ("png", "pdf"):
        image = io.BytesIO()
        save_figure(figure, image, kind)
        images[f"{name}.{kind}"] = image.getvalue()
    return images
