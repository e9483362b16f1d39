"""Processes killed at random moments, local ones and those of Ray: the atlas is that of an undisturbed run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import attngeo
from tests.atlas.kills import contents, fill_with_kills, start_add
from tests.atlas.ray_cluster import RayCluster
from tests.atlas.small_models import MORE_LAYOUTS, make_models

MODELS = 60
# One process of xdist runs them all, so that a Ray is started once.
pytestmark = [
    pytest.mark.xdist_group("atlas"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of models in folders."""
    folder = tmp_path_factory.mktemp("models")
    models = make_models(folder, MODELS, layouts=list(MORE_LAYOUTS))
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
