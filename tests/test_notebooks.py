"""The notebooks of the documentation run, and print what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")

import nbformat

from tools.check_docs import difference
from tools.notebooks import FOLDER, printed, run

QUICK = ["first_look"]  # `make test` runs this one: it needs no torch
SLOW = ["organise_a_network", "watch_a_training"]


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*QUICK, *SLOW}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_notebook_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.ipynb"
    for saved, fresh in zip(
        code_cells(nbformat.read(path, as_version=4)), code_cells(run(path, tmp_path)), strict=True
    ):
        found = difference(printed(saved), printed(fresh))
        assert not found, f"{name}: {saved.source}\n{found}"


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_notebook_is_saved_with_its_outputs_and_small(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.execution_count for cell in code_cells(notebook))
    assert any("image/png" in output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs)
    assert str(Path.home()) not in path.read_text("utf-8")


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
