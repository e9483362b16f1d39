"""A full disk ends a call with one line; what was written before stays, and the call continues when there is room."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attngeo
from tests.atlas.hub import atlas_command, small_repo
from tests.atlas.kills import ROOT, contents
from tests.atlas.small_models import make_models
from tests.weights.sources.hub_server import HubServer

MODELS = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few models, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def add(atlas: Path, models: list[Path], workers: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attngeo", "atlas", "add", atlas, *models, "--workers", workers]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)


def test_no_space_left(small_disk: Path, tmp_path: Path) -> None:
    models = make_models(tmp_path / "models", MODELS)
    whole = attngeo.Atlas(tmp_path / "whole")
    whole.add(models, workers=0)
    atlas = small_disk / "atlas"
    done = add(atlas, models, 2)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == ""
    assert line.startswith(f"attngeo: error: {atlas}/") and line.endswith("cannot be written (No space left on device)")
    before = attngeo.Atlas(atlas)
    assert 0 < before.status().models < MODELS and before.frame().height > 0
    assert not list(atlas.rglob(".part-*"))

    subprocess.run(["mount", "-o", "remount,size=10m", small_disk], check=True)
    assert add(atlas, models, 1).returncode == 0
    assert contents(atlas) == contents(whole.path)


def test_no_space_left_for_the_cache(small_disk: Path, tmp_path: Path) -> None:
    """A full cache is not the fault of a model: it ends the call, and no model counts as failed."""
    (small_disk / "filling").write_bytes(bytes(92 << 10))
    repos = {f"org/{i}": small_repo("llama", i) for i in range(2)}
    with HubServer(repos) as hub:
        arguments = ("add", tmp_path / "atlas", *repos, "--workers", "1")
        done = atlas_command(tmp_path, hub.url, *arguments, cache=small_disk)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("attngeo: error: org/") and line.endswith("(No space left on device)")
    assert attngeo.Atlas(tmp_path / "atlas").failures().is_empty()
