"""Worker processes give the same rows as the calling process, end with it, and are replaced if they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import attngeo
from attngeo.atlas import Added, executors
from attngeo.atlas.store import Store
from tests.atlas.deadly_task import deadly_tasks
from tests.atlas.kills import ROOT, contents, start_add
from tests.atlas.processes import wait_until, workers_of
from tests.atlas.small_models import make_models

MODELS = 8
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_models(tmp_path_factory.mktemp("models"), MODELS)


@pytest.fixture(scope="module")
def undisturbed(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    atlas = attngeo.Atlas(tmp_path_factory.mktemp("undisturbed") / "atlas")
    assert atlas.add(models, workers=0).scored == MODELS
    return contents(atlas.path)


def test_processes_give_the_same_bytes(models: list[Path], undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    atlas = attngeo.Atlas(tmp_path / "atlas")
    added = atlas.add(models, workers=2, progress=lambda done, total: steps.append((done, total)))
    assert added == Added(scored=MODELS, linked=0, known=0, failed=0)
    assert steps == [(done, MODELS) for done in range(1, MODELS + 1)]
    assert contents(atlas.path) == undisturbed


def test_two_calls_at_once_give_the_same_bytes(
    models: list[Path], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    calls = []
    for name, order in (("one", models), ("other", models[::-1])):
        names = tmp_path / name
        names.write_text("".join(f"{model}\n" for model in order))
        calls.append(start_add(tmp_path / "atlas", names, "--workers", "1"))
    assert [call.wait(60) for call in calls] == [0, 0]
    assert contents(tmp_path / "atlas") == undisturbed


def test_a_model_that_ends_every_worker_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "TRIES", 2)
    atlas = attngeo.Atlas(tmp_path / "atlas")
    atlas.add([])
    outcomes = executors.local_processes(Store(atlas.path), deadly_tasks("a", "deadly", "b"), 1)
    assert [(outcome.reference.model, outcome.state) for outcome in outcomes] == [
        ("a", "scored"),
        ("deadly", "failed"),
        ("b", "scored"),
    ]
    [failure] = atlas.failures().iter_rows(named=True)
    assert failure["kind"] == "WorkerLost" and "signal 9, 2 times" in failure["message"]


def test_ctrl_c_prints_nothing(models: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attngeo", "atlas", "add", tmp_path / "atlas", *models, "--workers", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: any((tmp_path / "atlas" / "models").glob("*.parquet")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 130


@needs_proc
def test_an_interrupt_ends_a_call_whose_tasks_take_long(tmp_path: Path) -> None:
    """Also after polars has been imported, which the driver does before its workers start."""
    script = (
        "import polars\n"
        "from pathlib import Path\n"
        "from attngeo.atlas.executors import local_processes\n"
        "from attngeo.atlas.store import Store\n"
        "from tests.atlas.deadly_task import deadly_tasks\n"
        f"list(local_processes(Store(Path('.')), deadly_tasks({str(tmp_path / 'begun')!r}), 1))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "begun").exists)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1].endswith("KeyboardInterrupt\n")
    assert workers and not any(Path(f"/proc/{worker}").exists() for worker in workers)
