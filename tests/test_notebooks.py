"""The notebooks of the documentation run, print what they show, and open in JupyterLab and in marimo."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

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


# ---- in a browser

VIEW = ".attention[data-head]"  # the widget with the attention of one head, once it is drawn


@pytest.mark.slow
def test_jupyterlab_opens_every_notebook_and_runs_one_with_the_widget(chromium: Any, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab")
    for path in FOLDER.glob("*.ipynb"):
        shutil.copy(path, tmp_path)
    options = ["--no-browser", "--allow-root", "--ServerApp.token=", f"--ServerApp.root_dir={tmp_path}"]
    with served("-m", "jupyterlab", *options, "--port", folder=tmp_path) as address:
        for name in QUICK + SLOW:
            page = chromium.new_page(viewport={"width": 1200, "height": 2400})  # cells out of sight are not drawn
            page.goto(f"{address}/lab/tree/{name}.ipynb?reset")
            page.wait_for_selector(".jp-Notebook .jp-RenderedImage img", timeout=60_000)
            if name == "organise_a_network":
                page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
                page.get_by_role("menuitem", name="Run", exact=True).click()
                page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
                check_widget(page)
                page.locator(".jp-Notebook").get_by_text("True", exact=True).wait_for()  # of the last cell
            assert page.locator("[data-mime-type='application/vnd.jupyter.stderr'], .jp-mod-error").count() == 0
            page.close()


@pytest.mark.slow
def test_the_marimo_notebook_shows_the_widget(chromium: Any, tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    options = ["run", str(FOLDER / "report.py"), "--headless", "--no-token"]
    with served("-m", "marimo", *options, "--port", folder=tmp_path) as address:
        page = chromium.new_page()
        page.goto(address)
        check_widget(page)
        page.close()


def check_widget(page: Any) -> None:
    """Wait until a notebook shows the attention of a head, and select another one."""
    page.wait_for_selector(VIEW, timeout=60_000)
    page.locator(".head-list select").select_option(label="L3H2")
    assert page.locator(VIEW).get_attribute("data-head") == "L3H2"
    assert page.locator(".matrix canvas").bounding_box()["height"] > 100


@contextmanager
def served(*arguments: str, folder: Path) -> Iterator[str]:
    """Run a server of notebooks in Python, with a free port as its last argument; yield its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **own, "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *arguments, str(port)], cwd=folder, env=environment, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                urlopen(address, timeout=10).close()
                break
            except (URLError, ConnectionError):
                time.sleep(0.1)
        assert server.poll() is None, (folder / "log.txt").read_text("utf-8")
        yield address
    finally:
        server.terminate()
        server.wait(30)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
