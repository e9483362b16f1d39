"""Models on the hub: headers and ranges, caches, offline mode, tokens; with the real client and a local server."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from attngeo.weights.sources.checkpoint import ReadRequest
from tests.weights.made_checkpoints import (
    LLAMA_CONFIG,
    Array,
    gguf_bytes,
    llama_like_tensors,
    normal,
    safetensors_bytes,
)
from tests.weights.sources.hub_job import Machine
from tests.weights.sources.hub_server import HubServer, Repo

TENSORS = llama_like_tensors()
CONFIG = json.dumps(LLAMA_CONFIG).encode()
REQUESTS = [ReadRequest(f"model.layers.{i}.self_attn.{x}_proj.weight") for i in range(3) for x in "qk"]
LISTING = "/api/models/org/name/revision/main?blobs=true"
USEFUL = sum(TENSORS[request.name].nbytes for request in REQUESTS)
SINGLE = {"config.json": CONFIG, "model.safetensors": safetensors_bytes(TENSORS), "README.md": b"# a model"}


def sharded() -> dict[str, bytes]:
    names = sorted(TENSORS)
    files, weight_map = {"config.json": CONFIG}, {}
    for i in range(3):
        file = f"model-0000{i + 1}-of-00003.safetensors"
        files[file] = safetensors_bytes({name: TENSORS[name] for name in names[i::3]})
        weight_map |= dict.fromkeys(names[i::3], file)
    return {**files, "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


def assert_same_values(found: dict[str, Array], requests: list[ReadRequest] = REQUESTS) -> None:
    for request in requests:
        rows = TENSORS[request.name].astype(np.float32)
        expected = rows if request.rows is None else np.concatenate([rows[a:b] for a, b in request.rows])
        np.testing.assert_array_equal(found[request.name], expected)


def header_size(file: bytes) -> int:
    return 8 + int.from_bytes(file[:8], "little")


def test_only_headers_and_ranges_are_fetched_and_only_once(tmp_path: Path) -> None:
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        first = machine.open("org/name", *REQUESTS)
        assert first.error is None and first.remote and first.config == LLAMA_CONFIG
        assert_same_values(first.tensors)
        assert hub.sent(".safetensors") == USEFUL + header_size(SINGLE["model.safetensors"])
        assert len([span for span in hub.ranges() if span[0] >= header_size(SINGLE["model.safetensors"])]) <= 6
        assert not any(request.file == "README.md" for request in hub.requests)
        # the hub redirects once per connection, not once per range
        assert sum(request.status == 302 for request in hub.requests) <= 4 < len(hub.ranges())

        hub.requests.clear()
        second = machine.open("org/name", *REQUESTS)
        assert_same_values(second.tensors)
        assert second.config == LLAMA_CONFIG
        assert hub.sent(".safetensors") == 0
        assert [request.path for request in hub.requests if "org/name" in request.path] == [LISTING]

        hub.requests.clear()
        offline = machine.open("org/name", *REQUESTS, HF_HUB_OFFLINE="1")
        assert_same_values(offline.tensors)
        assert offline.config == LLAMA_CONFIG and not hub.requests

    gone = machine.open("org/name", *REQUESTS)  # the server has stopped, the cache still serves
    assert_same_values(gone.tensors)
    pinned = machine.open(f"org/name@{hub.repos['org/name'].commit}", *REQUESTS, HF_HUB_OFFLINE="1")
    assert_same_values(pinned.tensors)


def test_shards_are_read(tmp_path: Path) -> None:
    files = sharded()
    with HubServer({"org/name": Repo(files)}) as hub:
        machine = Machine(tmp_path, hub.url)
        assert_same_values(machine.open("org/name", *REQUESTS).tensors)
        headers = sum(header_size(data) for name, data in files.items() if name.endswith(".safetensors"))
        assert hub.sent(".safetensors") <= 1.05 * USEFUL + headers
        assert_same_values(machine.open("org/name", *REQUESTS, HF_HUB_OFFLINE="1").tensors)


def test_rows_and_reads_that_were_not_planned(tmp_path: Path) -> None:
    requests = [ReadRequest(REQUESTS[0].name, ((8, 16), (16, 24), (40, 41))), ReadRequest(REQUESTS[3].name)]
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        found = Machine(tmp_path, hub.url).open("org/name", *requests, plan=False)
        assert_same_values(found.tensors, requests)
        header = header_size(SINGLE["model.safetensors"])
        assert hub.sent(".safetensors") == header + 17 * 128 + TENSORS[REQUESTS[3].name].nbytes
        assert len(hub.ranges()) == 2 + 2 + 1


def test_a_whole_file_in_the_cache_of_the_client_is_read_there(tmp_path: Path) -> None:
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        commit = hub.repos["org/name"].commit
        snapshot = tmp_path / "hf" / "hub" / "models--org--name" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name, data in SINGLE.items():
            (snapshot / name).write_bytes(data)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text(commit)
        offline = machine.open("org/name", *REQUESTS, HF_HUB_OFFLINE="1")
        assert_same_values(offline.tensors)
        assert not offline.remote and not hub.requests
        online = machine.open("org/name", *REQUESTS)
        assert_same_values(online.tensors)
        assert not online.remote and {request.file for request in hub.requests} == {""}


def test_the_cache_is_keyed_by_commit(tmp_path: Path) -> None:
    name = REQUESTS[0].name
    changed = {**SINGLE, "model.safetensors": safetensors_bytes({**TENSORS, name: 2 * TENSORS[name]})}
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        assert_same_values(machine.open("org/name", *REQUESTS[:1]).tensors, REQUESTS[:1])
        old = hub.repos["org/name"].commit
        hub.repos = {"org/name": Repo(changed)}
        np.testing.assert_array_equal(
            machine.open("org/name", *REQUESTS[:1]).tensors[name], 2 * TENSORS[name].astype("f4")
        )
    assert_same_values(machine.open(f"org/name@{old}", *REQUESTS[:1], HF_HUB_OFFLINE="1").tensors, REQUESTS[:1])


def test_a_commit_that_a_silent_hub_may_have_replaced_is_named(tmp_path: Path) -> None:
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        machine.open("org/name", REQUESTS[0])
        old = hub.repos["org/name"].commit
        hub.repos = {"org/name": Repo({**SINGLE, "README.md": b"newer"})}
        hub.gate = lambda request: (503, {}) if request.api else None
        line = f"attngeo: org/name: {hub.url} does not answer, commit {old} is read from the cache\n"
        busy = machine.open("org/name", REQUESTS[0])
        assert_same_values(busy.tensors, REQUESTS[:1])
        assert busy.log == line
        assert machine.open("org/name", REQUESTS[0], HF_HUB_OFFLINE="1").log == ""
    assert machine.open("org/name", REQUESTS[0]).log == line


def test_the_token_is_sent_to_the_hub_and_not_to_its_storage(tmp_path: Path) -> None:
    with HubServer({"org/private": Repo(SINGLE, token="secret"), "org/gated": Repo(SINGLE, gated=True)}) as hub:
        machine = Machine(tmp_path, hub.url)
        private, gated = (outcome.error or "" for outcome in machine.open_each(list(hub.repos)))
        assert "no such model" in private
        assert "gated" in gated and "HF_TOKEN" in gated
        for outcome in machine.open_each(list(hub.repos), *REQUESTS, HF_TOKEN="secret"):
            assert_same_values(outcome.tensors)
        assert any(request.storage and request.range for request in hub.requests)
        assert all(request.token is None for request in hub.requests if request.storage)


def test_a_file_or_a_folder_of_a_repository_opens(tmp_path: Path) -> None:
    files = {f"text_encoder/{name}": data for name, data in SINGLE.items()}
    files |= {
        "a.safetensors": safetensors_bytes({"a": normal(2, 2)}),
        "b.safetensors": safetensors_bytes({"a": normal(3, 2)}),
    }
    with HubServer({"org/name": Repo(files)}) as hub:
        machine = Machine(tmp_path, hub.url)
        found = machine.open("org/name/text_encoder", *REQUESTS[:1])
        assert_same_values(found.tensors, REQUESTS[:1])
        assert found.config == LLAMA_CONFIG
        refs = ["org/name/b.safetensors@main", "org/name", "org/name/nothing"]
        file, both, nothing = machine.open_each(refs, ReadRequest("a"))
        np.testing.assert_array_equal(file.tensors["a"], normal(3, 2))
        assert "name the one file" in (both.error or "")
        assert "no file or folder 'nothing'" in (nothing.error or "")


def test_a_bin_file_is_downloaded_after_a_message_with_its_size(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(300, 4)}, buffer)
    with HubServer({"org/name": Repo({"pytorch_model.bin": buffer.getvalue(), "config.json": CONFIG})}) as hub:
        for found in Machine(tmp_path, hub.url).open_each(["org/name", "org/name"], ReadRequest("w")):
            assert found.error is None and not found.remote and found.tensors["w"].sum() == 1200
            assert found.log.count("org/name has no safetensors: downloading all of pytorch_model.bin, 6.") == 1
            assert " kB" in found.log
        assert hub.sent(".bin") == len(buffer.getvalue())


def test_gguf_files_are_read_by_ranges(tmp_path: Path) -> None:
    request = ReadRequest("blk.1.attn_q.weight", ((0, 16),))
    tensors = {request.name: normal(64, 64), "token_embd.weight": normal(100_000, 32, dtype=np.float16)}
    data = gguf_bytes({"attention.head_count": 4}, tensors)
    with HubServer(
        {"org/one": Repo({"m.gguf": data, "README.md": b""}), "org/two": Repo({"a.gguf": data, "b.gguf": data})}
    ) as hub:
        machine = Machine(tmp_path, hub.url)
        found = machine.open("org/one", request)
        np.testing.assert_array_equal(found.tensors[request.name], tensors[request.name][:16])
        assert found.config is not None and found.config["model_type"] == "gguf:llama"
        assert hub.sent(".gguf") < 0.05 * len(data)
        both, named = machine.open_each(["org/two", "org/two/b.gguf"], request)
        assert "name the one to read" in (both.error or "")
        assert named.tensors[request.name].shape == (16, 64)
