"""Forty models from a hub that limits requests and fails now and then: all are scored, after the waits it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attngeo
from tests.atlas.hub_server import FAULTS, UnreliableHub, small_repos
from tests.weights.made_checkpoints import write_files

ROOT = Path(__file__).resolve().parents[2]
MODELS = 40
SCRIPT = "import sys, attngeo; print(attngeo.Atlas(sys.argv[1]).add(sys.argv[2:], workers=2))"
pytestmark = pytest.mark.xdist_group("atlas")


def environment(home: Path, url: str) -> dict[str, str]:
    """Return the environment of a process that uses a hub at `url` and empty caches."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
    places = {"HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(home / "cache")}
    return {**kept, **places, "HF_HUB_DISABLE_XET": "1"}


def test_a_hub_that_limits_and_fails(tmp_path: Path) -> None:
    repos = small_repos(MODELS)
    with UnreliableHub(repos, limits={"api": 16, "file": 60}, seconds=1.0, share=0.05, seed=3) as hub:
        arguments = [str(tmp_path / "atlas"), *repos]
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
            cwd=ROOT, env=environment(tmp_path, hub.url), capture_output=True, text=True, timeout=110,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{MODELS} scored, 0 linked to the same weights, 0 known before, 0 failed\n"
    assert set(hub.faults) == set(FAULTS) and hub.faults.total() > 10
    assert 0 < hub.refused < MODELS
    assert hub.fetched_twice() == 0
    # Of each file only the queries, keys and norms: a third of fused and separate tensors are values.
    whole = sum(len(repo.files["model.safetensors"]) for repo in repos.values())
    assert hub.sent(".safetensors") < whole

    atlas = attngeo.Atlas(tmp_path / "atlas")
    local = [write_files(tmp_path / "models" / name, dict(repo.files)) for name, repo in list(repos.items())[:12]]
    assert atlas.add(local, workers=0).linked == len(local)  # the bytes that arrived are those of the files
