"""The initialisation experiment as a folder: its comparison as tables, its runs as pictures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import InputError
from attngeo.io.atomic import write_errors, write_file
from attngeo.show import save_figure
from experiments.initialisation.figures import form_figure, loss_figure, saved_figure
from experiments.initialisation.statistics import Finished, compare
from experiments.initialisation.table import as_csv, as_markdown, as_text, forms_as_csv, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The controls are drawn apart: in one picture with the starts nobody could tell them from each other.
_CONTROLS = ("unit rotated", "unit self-attending", "unit skewed", "unit negative")
_BESIDE_CONTROLS = ("baseline", "unit independent", "unit symmetric")


def draw(runs: Sequence[Finished], folder: Path, against: str = "baseline") -> list[Path]:
    """Every figure, the comparison as table.txt, .md and .csv, the forms as form.csv; returns what was written.

    against  the start the others are compared with
    """
    ended = [run for run in runs if run.diverged is None]
    if not ended:
        raise InputError(f"{folder}: no finished runs to draw")
    table = compare(runs, against)
    content = {
        "table.txt": as_text(table).encode() + b"\n",
        "table.md": as_markdown(table).encode() + b"\n",
        "table.csv": as_csv(table).encode() + b"\n",
        "form.csv": forms_as_csv(ended).encode() + b"\n",
    }
    starts = [run for run in ended if run.cell.start not in _CONTROLS or run.cell.start == against]
    for part in grouped(starts, lambda run: (run.cell.objective, run.cell.size)):
        content[f"losses-{part[0].cell.objective}-{part[0].cell.size}.png"] = _png(loss_figure(part, against))
    if any(one.saved is not None for one in table):
        content["saved.png"] = _png(saved_figure(table))
    controls = [run for run in ended if run.cell.start in _CONTROLS]
    if controls:
        settings = {run.cell.setting for run in controls}
        known = (*_BESIDE_CONTROLS, against)
        beside = [run for run in starts if run.cell.start in known and run.cell.setting in settings]
        content["controls.png"] = _png(loss_figure([*beside, *controls], against))
    for start in ("baseline", "unit symmetric"):
        for pair in _shared(run for run in ended if run.cell.start == start):
            cell = pair[0].cell
            name = f"form-{cell.size}-lr{cell.lr:g}-{cell.steps}{cell.suffix}-{start.replace(' ', '-')}"
            content[f"{name}.png"] = _png(form_figure(pair))
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            write_file(folder / name, data)
    return [folder / name for name in content]


def _shared(runs: Iterable[Finished]) -> list[list[Finished]]:
    """Runs that differ in objective and seed alone."""
    return grouped(runs, lambda run: (run.cell.size, run.cell.lr, run.cell.steps, run.cell.other))


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    save_figure(figure, picture)
    return picture.getvalue()
