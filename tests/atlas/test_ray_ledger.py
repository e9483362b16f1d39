"""On Ray one actor keeps the budget of requests for all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attngeo.atlas import HubLimits
from attngeo.atlas.budget import FileLedger
from attngeo.atlas.executors.ray_ledger import with_shared_ledger
from attngeo.atlas.executors.ray_tasks import _connected
from attngeo.weights.sources.hub.throttle import Ledger

pytest.importorskip("ray")


@dataclass(frozen=True)
class Job:
    """A job with a budget."""

    ledger: Ledger | None


def waits(ledger: Any) -> tuple[float, float]:
    """Return the waits of two requests, in a task of Ray."""
    return ledger.reserve("api"), ledger.reserve("api")


@pytest.mark.xdist_group("atlas")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tasks_share_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    job = Job(FileLedger(HubLimits(api=3, seconds=1000.0)))
    with _connected(None, 1) as ray:
        assert with_shared_ledger(ray, Job(None)) == Job(None)
        ledger = with_shared_ledger(ray, job).ledger
        remote = ray.remote(waits)
        found = sorted(wait for pair in ray.get([remote.remote(ledger) for _ in range(2)]) for wait in pair)
        ledger.pause("file", 60.0)
        paused = ledger.paused("file")
    assert found[:3] == [0.0] * 3 and 900 < found[3] <= 1000
    assert 50 < paused <= 60
