"""Models of the hub in an atlas, from a local server: commits are recognised before any tensor is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attngeo
from tests.atlas.small_models import model_files
from tests.weights.made_checkpoints import write_files
from tests.weights.sources.hub_server import HubServer, Repo

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (
    "import sys, json, attngeo.atlas, dataclasses\n"
    "added = attngeo.Atlas(sys.argv[1]).add(sys.argv[3:], workers=int(sys.argv[2]), retry=True)\n"
    "print(json.dumps(dataclasses.asdict(added)))\n"
)


def add(home: Path, url: str, *refs: str, workers: int = 0) -> dict[str, int]:
    """Add models in a process of its own, because the client reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
    environment = {
        **kept,
        "HF_ENDPOINT": url,
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    arguments = [sys.executable, "-W", "error", "-c", SCRIPT, str(home / "atlas"), str(workers), *refs]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return {state: count for state, count in counts.items() if count}


def as_bytes(files: Mapping[str, bytes | Mapping[str, Any]]) -> dict[str, bytes]:
    return {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in files.items()}


def listings(hub: HubServer) -> int:
    """Return how often the files of a model were asked for; the client asks the hub for other things too."""
    return sum(request.path.startswith("/api/models/") for request in hub.requests)


def test_commits_are_recognised_and_copies_linked(tmp_path: Path) -> None:
    content = as_bytes(model_files("llama"))
    repos = {
        "org/name": Repo(content, revisions=("main", "v1")),
        "org/copy": Repo({**content, "README.md": b"mine"}),
        "org/bert": Repo(as_bytes(model_files("bert"))),
    }
    commit = repos["org/name"].commit
    with HubServer(repos) as hub:
        assert add(tmp_path, hub.url, "org/name") == {"scored": 1}
        ranges = hub.ranges()
        assert len(set(ranges)) == len(ranges)  # the second pass over the weights reads the cache
        assert listings(hub) == 1

        hub.requests.clear()
        assert add(tmp_path, hub.url, "org/name", f"{hub.url}/org/name/tree/main") == {"known": 1}
        assert not hub.ranges() and listings(hub) == 1

        hub.requests.clear()
        assert add(tmp_path, hub.url, "org/name@v1", f"org/name@{commit}") == {"linked": 2}
        assert not hub.ranges()

        hub.requests.clear()
        assert add(tmp_path, hub.url, f"org/name@{commit}") == {"known": 1}
        assert not hub.requests

        assert add(tmp_path, hub.url, "org/copy", "org/bert", "org/none", workers=2) == {
            "scored": 1, "linked": 1, "failed": 1,
        }  # fmt: skip

    atlas = attngeo.Atlas(tmp_path / "atlas")
    local = write_files(tmp_path / "local", content)
    assert atlas.add(local, workers=0).linked == 1  # rows do not depend on where a model is stored
    rows = atlas.models().select("model", "revision", "commit", "model_type").rows()
    assert rows == [
        (str(local), None, None, "llama"),
        ("org/bert", "main", repos["org/bert"].commit, "bert"),
        ("org/copy", "main", repos["org/copy"].commit, "llama"),
        ("org/name", commit, commit, "llama"),
        ("org/name", "main", commit, "llama"),
        ("org/name", "v1", commit, "llama"),
    ]
    assert atlas.status().parts == 2
    assert atlas.failures().select("model", "revision", "kind").rows() == [("org/none", "main", "SourceError")]
