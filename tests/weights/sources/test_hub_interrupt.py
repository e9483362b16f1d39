"""Ctrl-C while the hub lets a transfer wait: the command ends at once and leaves no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from attngeo.data import bundled
from tests.weights.sources.hub_server import HubServer, Repo, Request

FILES = {path.name: path.read_bytes() for path in bundled("encoder").iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("command", "answered"),
    [
        (["score"], 0),  # requests before the wait: none, so that the header is waited for
        (["score"], 2),  # header and its length, so that weights are waited for
        pytest.param(["score", "--device", "cpu"], 2, marks=pytest.mark.slow),
        pytest.param(["compare", str(bundled("decoder"))], 2, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_a_wait_that_the_hub_asked_for(tmp_path: Path, command: list[str], answered: int) -> None:
    refused = threading.Event()

    def gate(request: Request) -> tuple[int, Mapping[str, str]] | None:
        if not request.storage or sum(past.storage for past in hub.requests) < answered:
            return None
        refused.set()
        return 429, {"Retry-After": "600"}

    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
    with HubServer({"org/name": Repo(FILES)}, gate=gate) as hub:
        caches = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        with subprocess.Popen(
            [sys.executable, "-m", "attngeo", *command, "org/name"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | caches | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"},
        ) as process:
            assert refused.wait(60)
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=30)
            finally:
                process.kill()
    assert (process.returncode, out) == (130, "")
    assert set(err.splitlines()) <= {"attngeo: org/name: the hub asks to wait 600 s"}
    assert not list(tmp_path.rglob(".part-*"))
