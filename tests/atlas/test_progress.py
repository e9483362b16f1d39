"""What a call tells about itself: to its caller, on stderr, and to other processes through the folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import attngeo
from attngeo.atlas import progress
from attngeo.atlas.progress import RunningCall
from attngeo.io.archive import save_json
from tests.atlas.small_models import make_models


def test_another_process_sees_how_far_a_call_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    models = [*make_models(tmp_path / "models", 3), tmp_path / "missing"]
    path, seen = tmp_path / "atlas", []

    def look(done: int, total: int) -> None:
        seen.extend(attngeo.Atlas(path).status().running)

    attngeo.Atlas(path).add(models, workers=0, progress=look)
    assert [(call.done, call.total, call.failed) for call in seen] == [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]
    assert {call.process for call in seen} == {os.getpid()}
    assert [call.read for call in seen] == sorted({call.read for call in seen})  # it grows with each model
    queries_and_keys = 3 * 2 * 2 * 32 * 32 * 4  # models, layers, tensors, values, bytes
    assert seen[-1].read >= queries_and_keys
    assert attngeo.Atlas(path).status().running == ()


def test_calls_that_were_killed_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "atlas"
    atlas = attngeo.Atlas(path)
    atlas.add([])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    calls = {
        "ended": RunningCall(1, 3, 0, 10, 1.0, time.time(), ended.pid, socket.gethostname()),
        "elsewhere": RunningCall(1, 3, 0, 10, 1.0, time.time(), ended.pid, "another host"),
    }
    for name, call in calls.items():
        save_json(path / "running" / f"{name}.json", "running call", asdict(call))
    status = atlas.status()
    assert status.running == (calls["elsewhere"],)
    assert str(status).splitlines()[1].startswith("running on another host")
    assert [path.stem for path in (path / "running").iterdir()] == ["elsewhere"]
