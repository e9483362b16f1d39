"""Faults of the hub and requests for missing models: retried if that can help, otherwise one line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from tests.weights.made_checkpoints import safetensors_bytes
from tests.weights.sources.hub_job import Machine
from tests.weights.sources.hub_server import Handler, HubServer, Repo, Request
from tests.weights.sources.test_hub import REQUESTS, SINGLE, USEFUL, assert_same_values, header_size, sharded

DATA = header_size(SINGLE["model.safetensors"])


def fault_of(request: Request) -> str:
    """Return the fault after which the model of a request is called: `cut` for a file of `org/cut`."""
    return request.path.split("/")[2]


def test_a_temporary_fault_is_retried(tmp_path: Path) -> None:
    """Every data range fails at the first request; an interrupted transfer continues where it stopped."""
    repos = {f"org/{fault}": Repo(SINGLE) for fault in ("503", "cut", "empty")}
    seen: dict[str, set[tuple[int, int]]] = {}

    def once(request: Request) -> str | None:
        assert request.range is not None
        fault = fault_of(request)
        past = seen.setdefault(fault, set())
        new = request.range not in past and request.range[0] >= DATA
        if fault == "cut":  # only whole tensors, because their second halves are new ranges
            new = new and request.range[1] - request.range[0] in (4096, 8192) and len(past) < 4
        past.add(request.range)
        return fault if new else None

    with HubServer(repos, fault=once) as hub:
        for outcome in Machine(tmp_path, hub.url).open_each(list(repos), *REQUESTS):
            assert_same_values(outcome.tensors)
        cut = sum(request.sent for request in hub.requests if request.file and fault_of(request) == "cut")
        assert cut == USEFUL + DATA + len(SINGLE["config.json"])


def test_an_expired_signed_address_is_requested_again(tmp_path: Path) -> None:
    def expired(request: Request) -> str | None:
        first = next(past for past in hub.requests if past.range is not None)  # that of the header
        assert request.range is not None
        return "403" if request.range[0] >= DATA and request.path == first.path else None

    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        hub.fault = lambda request: expired(request) if hub.ranges() else None
        assert_same_values(Machine(tmp_path, hub.url).open("org/name", *REQUESTS).tensors)
        assert 2 <= sum(request.status == 302 for request in hub.requests) <= 5


LASTING = {
    "cut": "model.safetensors",
    "empty": "stopped at byte",
    "503": "answered 503",
    "403": "answered 403",
    "whole": "does not serve byte ranges of 'model.safetensors'",
}


def test_a_lasting_fault_gives_one_line_and_leaves_no_files(tmp_path: Path) -> None:
    def always(request: Request) -> str | None:
        assert request.range is not None
        # "cut" sends half of the rest each time, so that the error must come from a transfer that sends nothing
        if (fault := fault_of(request)) == "cut":
            return "empty" if request.range[0] > DATA else None
        return fault if request.range[0] >= DATA else None

    refs = [f"org/{fault}" for fault in LASTING]
    with HubServer({ref: Repo(SINGLE) for ref in refs}, fault=always) as hub:
        machine = Machine(tmp_path, hub.url)
        for ref, part, outcome in zip(refs, LASTING.values(), machine.open_each(refs, *REQUESTS), strict=True):
            error = outcome.error
            assert error is not None and part in error and ref in error and "\n" not in error
        kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".json"]
        assert sorted(path.name for path in kept) == sorted(["0-8", f"8-{DATA}"] * len(LASTING))
        hub.fault = None
        for outcome in machine.open_each(refs, *REQUESTS):
            assert_same_values(outcome.tensors)


def test_missing_and_damaged_models_give_one_line(tmp_path: Path) -> None:
    adapter = {"adapter_model.safetensors": b"", "adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}
    repos = {
        "org/name": Repo(SINGLE),
        "org/adapter": Repo(adapter),
        "org/listed": Repo({name: data for name, data in sharded().items() if "00002" not in name}),
        "org/short": Repo({**SINGLE, "model.safetensors": SINGLE["model.safetensors"][:-4]}),
        "org/evil": Repo({"../evil.safetensors": SINGLE["model.safetensors"]}),
        "org/nan": Repo({"model.safetensors": safetensors_bytes({REQUESTS[0].name: np.full((3, 3), np.nan)})}),
    }
    lines = {
        "org/nothing": ["org/nothing: ", "no such folder here and no such model"],
        "org/name@nothing": ["org/name@nothing: ", "no revision 'nothing'"],
        "org/na--me": ["not a hub id"],
        "org/adapter": ["only an adapter of 'a/b'"],
        "org/listed": ["org/listed/model-00002-of-00003.safetensors: is missing, but"],
        "org/short": ["org/short/model.safetensors", "incomplete"],
        "org/nan": ["org/nan/model.safetensors", REQUESTS[0].name, "expected finite weights"],
        "org/evil": ["org/evil: is empty"],
    }
    with HubServer(repos) as hub:
        machine = Machine(tmp_path, hub.url)
        for (ref, parts), outcome in zip(lines.items(), machine.open_each(list(lines), REQUESTS[0]), strict=True):
            assert outcome.error is not None and "\n" not in outcome.error, ref
            for part in parts:
                assert part in outcome.error, outcome.error


def test_an_answer_that_is_no_hubs_gives_one_line(tmp_path: Path) -> None:
    """The login page of a network answers every request; so does a server that HF_ENDPOINT names by mistake."""
    pages = {"a": b"<html>Sign in</html>", "b": b"{}"}

    class Page(Handler):
        def _answer(self) -> None:
            self._send(200, pages[self.path.split("/")[4]], {"Content-Type": "text/html"})

    class Portal(HubServer):
        handler = Page  # type: ignore[assignment]

    with Portal({}) as portal:
        outcomes = Machine(tmp_path, portal.url).open_each([f"org/{name}" for name in pages])
    for name, outcome in zip(pages, outcomes, strict=True):
        error = outcome.error
        assert error is not None and error.startswith(f"org/{name}: {portal.url} does not answer as a hub does (")
        assert "\n" not in error


def test_offline_and_not_in_the_cache(tmp_path: Path) -> None:
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        error = machine.open("org/name", HF_HUB_OFFLINE="1").error
        assert error == "org/name: no such folder here, not in the cache, and HF_HUB_OFFLINE forbids downloading it"
        assert not hub.requests
        assert_same_values(machine.open("org/name", REQUESTS[0]).tensors, REQUESTS[:1])
        error = machine.open(
            "org/name", *REQUESTS, HF_HUB_OFFLINE="1"
        ).error  # the header is in the cache, this layer is not
        assert error == "org/name: not in the cache, and HF_HUB_OFFLINE forbids downloading it"
    error = machine.open("org/other").error
    assert (
        error is not None
        and error.startswith(f"org/other: no such folder here, and {hub.url} cannot be reached (")
        and "\n" not in error
    )


def test_a_cache_folder_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        found = Machine(tmp_path, hub.url).open("org/name", *REQUESTS, ATTNGEO_CACHE=str(tmp_path / "file"))
        assert_same_values(found.tensors)


def test_incomplete_ranges_of_killed_processes_are_deleted_after_a_day(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with HubServer({"org/name": Repo(SINGLE)}) as hub:
        machine = Machine(tmp_path, hub.url)
        machine.open("org/name", REQUESTS[0], ATTNGEO_CACHE=str(own))
        folder = next(path.parent for path in own.rglob("0-8"))
        for age in (1, 25):
            (folder / f".part-{age}").write_bytes(bytes(100))
            os.utime(folder / f".part-{age}", (time.time() - 3600 * age,) * 2)
        machine.open("org/name", REQUESTS[0], ATTNGEO_CACHE=str(own))
    assert [path.name for path in folder.glob(".part-*")] == [".part-1"]  # which may still be written
