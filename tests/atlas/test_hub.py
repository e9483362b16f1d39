"""Models of the hub in an atlas, from a local server: which are read, how often, and what happens if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import attngeo
from attngeo.atlas import hub_models, hub_revisions
from attngeo.errors import AttngeoError
from tests.atlas.hub import FAULTS, UnreliableHub, atlas_command, small_repo, small_repos
from tests.weights.made_checkpoints import write_files
from tests.weights.sources.hub_server import HubServer, Repo

MODELS = 14


def listings(hub: HubServer) -> int:
    """Return how often the files of a model were asked for; the client asks the hub for other things too."""
    return sum(request.path.startswith("/api/models/") for request in hub.requests)


def test_commits_are_recognised_and_copies_linked(tmp_path: Path) -> None:
    model = small_repo("llama", revisions=("main", "v1"))
    repos = {"org/name": model, "org/copy": Repo({**model.files, "README.md": b"mine"}), "org/bert": small_repo("bert")}
    commit = model.commit
    with HubServer(repos) as hub:

        def added(*refs: str, workers: int = 0) -> str:
            """Return what a call did, without what it said about failures; nothing is remembered of requests before."""
            hub.requests.clear()
            done = atlas_command(tmp_path, hub.url, "add", tmp_path / "atlas", *refs, "--workers", workers)
            [line] = [line for line in done.stderr.splitlines() if " known before, " in line]
            return line.partition("atlas: ")[2]

        assert added("org/name").startswith("1 scored, 0 linked")
        ranges = hub.ranges()
        assert len(set(ranges)) == len(ranges)  # the second pass over the weights reads the cache
        assert listings(hub) == 1
        assert "1 known before, 0 failed" in added("org/name", f"{hub.url}/org/name/tree/main")
        assert not hub.ranges() and listings(hub) == 1
        assert "2 linked to the same weights" in added("org/name@v1", f"org/name@{commit}")
        assert not hub.ranges()
        assert "1 known before" in added(f"org/name@{commit}") and not hub.requests
        done = added("org/copy", "org/bert", "org/none", workers=2)
        assert done == "1 scored, 1 linked to the same weights, 0 known before, 1 failed"

    atlas = attngeo.Atlas(tmp_path / "atlas")
    local = write_files(tmp_path / "local", dict(model.files))
    assert atlas.add(local, workers=0).linked == 1  # rows do not depend on where a model is stored
    assert atlas.models().select("model", "revision", "commit", "model_type").rows() == [
        (str(local), None, None, "llama"),
        ("org/bert", "main", repos["org/bert"].commit, "bert"),
        ("org/copy", "main", repos["org/copy"].commit, "llama"),
        ("org/name", commit, commit, "llama"),
        ("org/name", "main", commit, "llama"),
        ("org/name", "v1", commit, "llama"),
    ]
    assert atlas.status().parts == 2
    assert atlas.failures().select("model", "revision", "kind").rows() == [("org/none", "main", "SourceError")]


@pytest.mark.xdist_group("atlas")
def test_a_hub_that_limits_and_fails(tmp_path: Path) -> None:
    repos = small_repos(MODELS)
    with UnreliableHub(repos, limits={"api": 10, "file": 36}) as hub:
        run = atlas_command(tmp_path, hub.url, "add", tmp_path / "atlas", *repos, "--workers", 2)
    assert run.returncode == 0, run.stderr
    assert f"{MODELS} scored, 0 linked to the same weights, 0 known before, 0 failed\n" in run.stderr
    assert set(hub.faults) == set(FAULTS) and 0 < hub.refused < MODELS
    assert hub.fetched_twice() == 0
    # Of each file only the queries, keys and norms: a third of fused and separate tensors are values.
    assert hub.sent(".safetensors") < sum(len(repo.files["model.safetensors"]) for repo in repos.values())
    local = [write_files(tmp_path / "models" / name, dict(repo.files)) for name, repo in list(repos.items())[:6]]
    added = attngeo.Atlas(tmp_path / "atlas").add(local, workers=0)
    assert added.linked == len(local)  # the bytes that arrived are those of the files


def test_an_organisation_and_the_revisions_of_a_run(tmp_path: Path) -> None:
    names = ("bert", "gpt2", "llama", "qwen3", "t5")
    repos = {f"org/{name}": small_repo(name) for name in names}
    repos["other/run"] = small_repo("bert", 9, revisions=("main", "step1", "step20"))
    old = repos["other/single"] = small_repo("bert", 8)
    asked = ("--org", "org", "--revisions", "other/run", "--revisions", "other/single", "--workers", "0")
    with HubServer(repos) as hub:
        done = atlas_command(tmp_path, hub.url, "add", tmp_path / "atlas", *asked)
        assert done.returncode == 0, done.stderr
        pages = [request for request in hub.requests if request.path.startswith("/api/models?")]
        assert len(pages) == 3  # five models, two per page
        none = atlas_command(tmp_path, hub.url, "add", tmp_path / "atlas", "--org", "nobody")
        assert none.returncode == 2 and none.stderr == f"attngeo: error: nobody: has no models at {hub.url}\n"
    models = attngeo.Atlas(tmp_path / "atlas").models()
    assert models.select("model", "revision").rows() == [
        *((f"org/{name}", "main") for name in names),
        *(("other/run", revision) for revision in ("main", "step1", "step20")),
        ("other/single", old.commit),  # its only branch is main, so that its commits are the revisions
    ]
    run = models.filter(model="other/run")
    assert run["part"].n_unique() == 1 and run["commit"].n_unique() == 1


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (hub_models, "a/b", "not an organisation"),
        (hub_revisions, "org/name@v1", "names one revision"),
        (hub_revisions, "./folder", "no such folder"),
    ],
)
def test_names_that_are_no_organisation_or_model(function, name: str, message: str) -> None:
    with pytest.raises(AttngeoError, match=message):
        function(name)
