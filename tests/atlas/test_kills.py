"""Processes killed at random moments, local ones and those of Ray: the atlas is that of an undisturbed run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attngeo
from attngeo.atlas import Added
from tests.atlas.kills import ROOT, contents, fill_with_kills, start_add
from tests.atlas.ray_cluster import RayCluster
from tests.atlas.small_models import make_models

MODELS = 16
# One process of xdist runs them all, so that a Ray is started once.
pytestmark = [
    pytest.mark.xdist_group("atlas"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of models in folders."""
    folder = tmp_path_factory.mktemp("models")
    models = make_models(folder, MODELS)
    path = folder / "models.txt"
    path.write_text("".join(f"{model}\n" for model in models))
    return path


@pytest.fixture(scope="module")
def undisturbed(names: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    atlas = attngeo.Atlas(tmp_path_factory.mktemp("undisturbed") / "atlas")
    assert atlas.add(names.read_text().split(), workers=0).scored == MODELS
    return contents(atlas.path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with RayCluster() as cluster:
        yield cluster


def test_local_processes(names: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    atlas = tmp_path / "atlas"
    killed = fill_with_kills(
        atlas, MODELS, ["driver", "worker", "worker", "driver"], 1, lambda: start_add(atlas, names, "--workers", "2")
    )
    assert killed == 4
    assert contents(atlas) == undisturbed
    assert attngeo.Atlas(atlas).status().running == ()


def test_ray(names: Path, undisturbed: dict[str, bytes], cluster: RayCluster, tmp_path: Path) -> None:
    atlas = tmp_path / "atlas"
    killed = fill_with_kills(
        atlas,
        MODELS,
        ["driver", "worker"],
        2,
        lambda: start_add(atlas, names, "--ray", cluster.address, environment=cluster.environment),
        cluster.pid,
    )
    assert killed == 2
    assert contents(atlas) == undisturbed


# The second of these tasks ends every process that tries it.
DEADLY = """
import sys
from pathlib import Path
import attngeo
from attngeo.atlas import executors
from attngeo.atlas.store import Store
from tests.atlas.deadly_task import deadly_tasks
atlas = attngeo.Atlas(sys.argv[2])
atlas.add([])
executors.RAY_TRIES = 3
outcomes = executors.ray_tasks(Store(atlas.path), deadly_tasks("a", "deadly", "b"), sys.argv[1], None)
print(sorted(f"{outcome.reference.model} {outcome.state} {outcome.message}" for outcome in outcomes))
"""


@pytest.mark.slow
def test_a_task_that_ends_every_process_of_ray_is_given_up(cluster: RayCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEADLY, cluster.address, str(tmp_path / "atlas")]
    run = subprocess.run(command, cwd=ROOT, env=cluster.environment, capture_output=True, text=True)
    lost = "its process on Ray ended, 3 times; too little memory is a likely cause"
    assert run.stdout.splitlines()[-1] == f"['a scored ', 'b scored ', 'deadly failed {lost}']", run.stderr


@pytest.mark.slow
def test_a_ray_of_this_machine(names: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = "import sys, attngeo; print(attngeo.Atlas(sys.argv[1]).add(sys.argv[2:], ray=True, workers=2))"
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "atlas"), *names.read_text().split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == f"{Added(scored=MODELS, linked=0, known=0, failed=0)}\n", run.stderr
    assert contents(tmp_path / "atlas") == undisturbed
