"""Worker processes give the same rows as the calling process; `test_kills` kills them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import attngeo
from attngeo.atlas import Added
from attngeo.atlas.executors import Job, processes, worker_handle
from attngeo.atlas.outcome import Outcome
from attngeo.errors import AttngeoError, InputError
from tests.atlas.processes import wait_until, workers_of
from tests.atlas.small_models import make_models

ROOT = Path(__file__).resolve().parents[2]
MODELS = 18

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_models(tmp_path_factory.mktemp("models"), MODELS)


@pytest.fixture(scope="module")
def undisturbed(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> attngeo.Atlas:
    atlas = attngeo.Atlas(tmp_path_factory.mktemp("undisturbed") / "atlas")
    assert atlas.add(models, workers=0).scored == MODELS
    return atlas


def parts(atlas: attngeo.Atlas) -> dict[str, bytes]:
    """Return the files of all tables that other readers would read."""
    return {str(path.relative_to(atlas.path)): path.read_bytes() for path in atlas.path.glob("*/*.parquet")}


def driver(atlas: Path, models: list[Path]) -> subprocess.Popen[bytes]:
    """Start a process that adds models with two workers."""
    script = "import sys, attngeo\nattngeo.Atlas(sys.argv[1]).add(sys.argv[2:], workers=2)\n"
    return subprocess.Popen([sys.executable, "-c", script, str(atlas), *map(str, models)], cwd=ROOT)


def test_processes_give_the_same_bytes(models: list[Path], undisturbed: attngeo.Atlas, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    atlas = attngeo.Atlas(tmp_path / "atlas")
    added = atlas.add(models, workers=2, progress=lambda done, total: steps.append((done, total)))
    assert added == Added(scored=MODELS, linked=0, known=0, failed=0)
    assert steps == [(done, MODELS) for done in range(1, MODELS + 1)]
    assert parts(atlas) == parts(undisturbed)


def test_two_drivers_at_once(models: list[Path], undisturbed: attngeo.Atlas, tmp_path: Path) -> None:
    processes = [driver(tmp_path / "atlas", order) for order in (models, models[::-1])]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert parts(attngeo.Atlas(tmp_path / "atlas")) == parts(undisturbed)


def test_a_model_that_ends_every_worker_fails_alone(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = (
        "import sys; sys.path[:] = {path!r}; from attngeo.atlas import task; import os\n"
        "from attngeo.atlas.executors import worker\n"
        "score = task.score_reference\n"
        "def end(store, reference, options):\n"
        "    os.kill(os.getpid(), 9) if reference.model.endswith('001-gpt2') else None\n"
        "    return score(store, reference, options)\n"
        "task.score_reference = end\n"
        "worker.main()\n"
    )
    monkeypatch.setattr(worker_handle, "START", deadly)
    monkeypatch.setattr(processes, "TRIES", 2)
    atlas = attngeo.Atlas(tmp_path / "atlas")
    assert atlas.add(models[:4], workers=1) == Added(scored=3, linked=0, known=0, failed=1)
    [failure] = atlas.failures().iter_rows(named=True)
    assert failure["kind"] == "WorkerLost" and "signal 9, 2 times" in failure["message"]


def test_workers_that_cannot_start_are_an_error(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_handle, "START", "import sys; sys.exit(3)")
    with pytest.raises(AttngeoError, match="no worker process could be started, it ended with exit code 3"):
        attngeo.Atlas(tmp_path / "atlas").add(models, workers=2)
    with pytest.raises(InputError, match="workers is -1"):
        attngeo.Atlas(tmp_path / "atlas").add(models, workers=-1)


def test_by_default_there_is_a_worker_per_core(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of threads, which workers do not share
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5}, raising=False)
    counts = []

    def run(self: processes.LocalProcesses, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        counts.append(self.count)
        return iter(())

    monkeypatch.setattr(processes.LocalProcesses, "run", run)
    attngeo.Atlas(tmp_path / "atlas").add(models)
    assert counts == [3]


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
        "from attngeo.atlas.executors import LocalProcesses\n"
        "from tests.atlas.deadly_job import DeadlyJob\n"
        f"list(LocalProcesses(1).run(DeadlyJob(), [{str(tmp_path / 'begun')!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "begun").exists)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1].endswith("KeyboardInterrupt\n")
    assert workers and not any(Path(f"/proc/{worker}").exists() for worker in workers)


@needs_proc
def test_an_interrupt_ends_the_workers(models: list[Path], tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    atlas = attngeo.Atlas(tmp_path / "atlas")
    with pytest.raises(KeyboardInterrupt):
        atlas.add(models, workers=2, progress=interrupt)
    wait_until(lambda: not workers_of(os.getpid()))
    assert 0 < atlas.status().models < MODELS
