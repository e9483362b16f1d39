"""Addresses pasted from a browser, and names without an organisation."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.hub import HubRef, is_address, parse_address
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import normal, safetensors_bytes
from tests.weights.sources.hub_job import Machine
from tests.weights.sources.hub_server import HubServer, Repo
from tests.weights.sources.test_hub import REQUESTS, SINGLE, assert_same_values

HUB = "https://huggingface.co"
ADDRESSES = {
    f"{HUB}/org/name": HubRef("org/name"),
    f"{HUB}/org/name/?not-for-all-audiences=true#usage": HubRef("org/name"),
    "http://www.huggingface.co/org/name": HubRef("org/name"),
    "hf.co/org/name": HubRef("org/name"),
    f"{HUB}/gpt2/tree/main": HubRef("gpt2"),
    f"{HUB}/org/name/tree/v1.0": HubRef("org/name", revision="v1.0"),
    f"{HUB}/org/name/tree/refs%2Fpr%2F3": HubRef("org/name", revision="refs/pr/3"),
    f"{HUB}/org/name/tree/main/text_encoder": HubRef("org/name", "text_encoder"),
    f"{HUB}/org/name/resolve/main/model.gguf?download=true": HubRef("org/name", "model.gguf"),
    f"{HUB}/org/name/commit/0123abc": HubRef("org/name", revision="0123abc"),
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_names_a_model_and_its_revision(address: str) -> None:
    assert is_address(address)
    assert parse_address(address) == ADDRESSES[address]


def test_an_address_of_the_hub_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:8080")
    assert parse_address("http://localhost:8080/org/name/tree/x") == HubRef("org/name", revision="x")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("https://example.com/org/name", "not an address of the hub"),
        ("s3://bucket/model", "not an address of the hub"),
        (HUB, "not a page of a model"),
        (f"{HUB}/datasets/org/name", "not a page of a model"),
        (f"{HUB}/org/name/discussions/3", "a page 'discussions' of model 'org/name' names no weights"),
    ],
)
def test_another_address_gives_one_line(address: str, problem: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_checkpoint(address)
    message = str(caught.value)
    assert message.startswith(f"{address}: {problem}") and "expected the address of a model" in message
    assert "\n" not in message


def test_pasted_addresses_are_opened(tmp_path: Path) -> None:
    files = {**SINGLE, "part/a.safetensors": safetensors_bytes({"a": normal(3, 2)})}
    with HubServer({"org/name": Repo(files, revisions=("main", "v1.0", "refs/pr/3"))}) as hub:
        machine = Machine(tmp_path, hub.url)
        refs = [
            f"{hub.url}/org/name",
            f"{HUB}/org/name/?library=transformers",
            f"{hub.url}/org/name/tree/v1.0",
            f"{HUB}/org/name/tree/refs%2Fpr%2F3",
            f"{hub.url}/org/name/blob/main/model.safetensors",
        ]
        for outcome in machine.open_each(refs, REQUESTS[0]):
            assert_same_values(outcome.tensors, REQUESTS[:1])
        refs = [f"{hub.url}/org/name/{page}" for page in ("tree/main/part", "tree/v9", "blob/main/b.bin")]
        part, missing, other = machine.open_each(refs, ReadRequest("a"))
        assert part.tensors["a"].shape == (3, 2)
        assert missing.error == "org/name@v9: model 'org/name' has no revision 'v9'"
        assert other.error == "org/name/b.bin: model 'org/name' has no file or folder 'b.bin'"


def test_a_name_without_an_organisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpt2` is a folder here, or else the model of that name, to whose present name the hub redirects."""
    repos = {"org/gpt2": Repo(SINGLE), "gpt2": Repo({}, moved_to="org/gpt2"), "bare": Repo(SINGLE)}
    with HubServer(repos) as hub:
        machine = Machine(tmp_path, hub.url)
        refs = ["gpt3", "gpt2", "bare", f"{hub.url}/gpt2/tree/main"]
        missing, *present = machine.open_each(refs, *REQUESTS)
        assert missing.error is not None
        assert missing.error.startswith("gpt3: no such folder here and no such model at")
        for found in present:
            assert found.error is None and found.config is not None and found.remote
            assert_same_values(found.tensors)
        assert any(request.status == 307 for request in hub.requests)
        assert_same_values(machine.open("gpt2", *REQUESTS, HF_HUB_OFFLINE="1").tensors)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "model.safetensors").write_bytes(safetensors_bytes({"here": normal(2, 2)}))
    monkeypatch.chdir(tmp_path)
    assert list(open_checkpoint("gpt2").tensors) == ["here"]
