"""All models of an organisation, all revisions of a model, and the published list, against a local hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attngeo
from attngeo.atlas.listing import hub_models, hub_revisions
from attngeo.atlas.reference import read_list
from attngeo.errors import AttngeoError
from attngeo.weights.scoring.published import published
from tests.atlas.small_models import model_files
from tests.atlas.test_hub import ROOT, as_bytes
from tests.weights.sources.hub_server import HubServer, Repo


def attngeo_command(
    home: Path, url: str, *arguments: str | Path, cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because the client reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
    cache = cache or home / "cache"
    environment = {**kept, "HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(cache)}
    environment["HF_HUB_DISABLE_XET"] = "1"
    call = [sys.executable, "-W", "error", "-m", "attngeo", "atlas", *map(str, arguments)]
    return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_an_organisation_and_the_revisions_of_a_run(tmp_path: Path) -> None:
    names = ("bert", "gpt2", "llama", "qwen3", "t5")
    repos = {f"org/{name}": Repo(as_bytes(model_files(name))) for name in names}
    repos["other/run"] = Repo(as_bytes(model_files("bert", 9)), revisions=("main", "step1", "step20"))
    old = repos["other/single"] = Repo(as_bytes(model_files("bert", 8)))
    with HubServer(repos) as hub:
        arguments = (
            "add",
            tmp_path / "atlas",
            "--org",
            "org",
            "--revisions",
            "other/run",
            "--revisions",
            "other/single",
        )
        done = attngeo_command(tmp_path, hub.url, *arguments, "--workers", "0")
        assert done.returncode == 0, done.stderr
        pages = [request for request in hub.requests if request.path.startswith("/api/models?")]
        assert len(pages) == 3  # five models, two per page
        none = attngeo_command(tmp_path, hub.url, "add", tmp_path / "atlas", "--org", "nobody")
        assert none.returncode == 2 and none.stderr == f"attngeo: error: nobody: has no models at {hub.url}\n"
    models = attngeo.Atlas(tmp_path / "atlas").models()
    assert models.select("model", "revision").rows() == [
        *((f"org/{name}", "main") for name in names),
        ("other/run", "main"),
        ("other/run", "step1"),
        ("other/run", "step20"),
        ("other/single", old.commit),  # its only branch is main, so that its commits are the revisions
    ]
    run = models.filter(model="other/run")
    assert run["part"].n_unique() == 1 and run["commit"].n_unique() == 1


@pytest.mark.parametrize("name", ["", "a/b", "two words"])
def test_names_that_are_no_organisation(name: str) -> None:
    with pytest.raises(AttngeoError, match="not an organisation"):
        hub_models(name)


@pytest.mark.parametrize("ref, message", [("org/name@v1", "names one revision"), ("./folder", "a path")])
def test_references_that_have_no_revisions(ref: str, message: str) -> None:
    with pytest.raises(AttngeoError, match=message):
        hub_revisions(ref)


def test_published_models_are_scored_and_set_beside_the_published_scores(tmp_path: Path) -> None:
    """Stand-ins with random weights and the depth of the real models; the list is the one in docs/, shortened.

    `test_every_published_row_has_a_score_beside_it` has all of it.
    """
    layouts = {
        "google/bert_uncased_L-2_H-128_A-2": ("bert", 2),
        "google/bert_uncased_L-4_H-256_A-4": ("bert", 4),
        "EleutherAI/pythia-14m": ("gpt_neox", 6),
        "openai-community/gpt2": ("gpt2", 12),
    }
    listed = tmp_path / "models.txt"
    listed.write_text("\n".join(name for name in read_list(ROOT / "docs" / "published_models.txt") if name in layouts))
    repos = {name: Repo(as_bytes(model_files(kind, layers=depth))) for name, (kind, depth) in layouts.items()}
    with HubServer(repos) as hub:
        done = attngeo_command(tmp_path, hub.url, "add", tmp_path / "atlas", "--list", listed, "--workers", "0")
        assert done.returncode == 0, done.stderr
    atlas = attngeo.Atlas(tmp_path / "atlas")
    rows = atlas.published(layers=True)
    assert rows.height == 2 + 4 + 6 + 12 and rows["symmetry_published"].null_count() == 0
    medians = atlas.published()
    assert dict(medians.select("model", "layers").iter_rows()) == {name: depth for name, (_, depth) in layouts.items()}
    assert (medians["symmetry_difference"].abs() > 0.01).any()  # random weights are not the published ones


@pytest.mark.slow
def test_every_published_row_has_a_score_beside_it(tmp_path: Path) -> None:
    """Stand-ins for all 151 models, with the stacks and the depth of the real ones."""
    expected = published()
    repos = {}
    for name, stacks in expected.partition_by("hub_id", as_dict=True).items():
        layout = "t5" if stacks["stack"].n_unique() == 2 else {"encoder": "bert", "decoder": "gpt2"}[stacks["stack"][0]]
        depth = stacks["layer"].n_unique()
        repos[str(name[0])] = Repo(as_bytes(model_files(layout, len(repos), depth)))
    options = ("--list", ROOT / "docs" / "published_models.txt", "--no-nulls", "--no-heads", "--workers", "2")
    with HubServer(repos) as hub:
        done = attngeo_command(tmp_path, hub.url, "add", tmp_path / "atlas", *options)
        assert done.returncode == 0, done.stderr
    found = attngeo.Atlas(tmp_path / "atlas").published(layers=True)
    both = found.join(expected, left_on=["model", "stack", "layer"], right_on=["hub_id", "stack", "layer"])
    assert found.height == both.height == expected.height
    for score in ("symmetry", "directionality"):
        assert both[f"{score}_published"].equals(both[f"{score}_right"], null_equal=True, check_names=False)
    assert both["caution"].equals(both["caution_right"], null_equal=True, check_names=False)
