"""All workers of a call share one budget of requests to the hub, and wait as long as a server asks them to."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from attngeo.atlas import HubLimits
from attngeo.atlas.budget import FileLedger
from attngeo.errors import InputError
from attngeo.weights.sources.hub.throttle import Ledger
from tests.atlas.small_models import LAYOUTS, model_files
from tests.atlas.test_hub import add, as_bytes
from tests.weights.sources.hub_server import HubServer, Repo, Request

SLACK = 1.0  # seconds that a request may take to reach the server


class Clock:
    """A clock that the tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e9
        monkeypatch.setattr("attngeo.atlas.budget.time.time", lambda: self.now)


def test_no_span_has_more_requests_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rng = Clock(monkeypatch), random.Random(0)
    limits = HubLimits(api=7, files=20, seconds=10.0)
    ledgers: list[Ledger] = [FileLedger(limits, tmp_path) for _ in range(3)]  # of several processes
    sent = []
    for _ in range(200):
        clock.now += rng.expovariate(1.0)
        sent.append(clock.now + rng.choice(ledgers).reserve("api"))
    assert sent == sorted(sent)
    assert all(later - earlier >= 10.0 - 1e-6 for earlier, later in zip(sent, sent[7:], strict=False))
    # The budget is used: places are given as early as the limit allows.
    assert any(later - earlier < 10.0 + 1e-6 for earlier, later in zip(sent, sent[7:], strict=False))
    assert FileLedger(limits, tmp_path).reserve("file") == 0.0  # another kind has a limit of its own


def test_a_pause_holds_for_all_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    one, two = (FileLedger(HubLimits(), tmp_path) for _ in range(2))
    assert two.reserve("api") == 0.0
    one.pause("api", 30.0)
    one.pause("api", 10.0)  # a shorter one does not shorten it
    clock.now += 5
    assert two.reserve("api") == two.paused("api") == 25.0
    assert two.reserve("file") == two.paused("file") == 0.0
    one.pause("storage", 3.0)
    assert two.reserve("storage") == 3.0
    clock.now += 25
    assert two.reserve("api") == 0.0


def test_old_requests_are_removed_and_a_changed_clock_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr("attngeo.atlas.budget.KEPT", 800)
    ledger = FileLedger(HubLimits(api=5, seconds=1.0), tmp_path)
    for _ in range(500):
        clock.now += 1.0
        assert ledger.reserve("api") == 0.0
    assert (tmp_path / "api").stat().st_size < 1600
    clock.now -= 1e6
    ledger.pause("api", 2.0)
    assert ledger.reserve("api") == 2.0


@pytest.mark.parametrize("options", [{"api": 0}, {"files": 0}, {"seconds": 0.0}])
def test_limits_that_allow_nothing(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"hub limits: {next(iter(options))} is 0"):
        HubLimits(**options)  # type: ignore[arg-type]


def test_workers_keep_the_budget_of_a_hub_with_faults(tmp_path: Path) -> None:
    """Twelve models, two workers: refusals, resets and half bodies are survived, and no byte is fetched twice."""
    names = list(LAYOUTS)
    repos = {f"org/m{i:02}": Repo(as_bytes(model_files(names[i % len(names)], i))) for i in range(12)}
    seen: set[str] = set()
    refused: list[float] = []

    def first(key: str) -> bool:
        new = key not in seen
        seen.add(key)
        return new

    def gate(request: Request) -> tuple[int, dict[str, str]] | str | None:
        model = int(found[1]) if (found := re.search(r"/m(\d\d)", request.path)) else -1
        if request.api and model == 3 and first("wait"):
            refused.append(request.time)
            return 429, {"Retry-After": "2"}
        if request.api and model in (5, 6) and first(f"api {model}"):
            return (503, {}) if model == 5 else "reset"
        if not request.api and model in (7, 8) and first(f"file {model} {request.path.partition('?')[0]}"):
            return (503, {}) if model == 7 else "reset"
        return None

    def fault(request: Request) -> str | None:
        large = request.range is not None and request.range[1] - request.range[0] > 2000
        return "cut" if large and first(f"cut {request.path.partition('?')[0]}") else None

    limits = HubLimits(api=6, files=40, seconds=3.0)
    with HubServer(repos, fault=fault, gate=gate) as hub:  # type: ignore[arg-type]
        assert add(tmp_path, hub.url, *repos, workers=2, limits=limits) == {"scored": 12}
        requests = list(hub.requests)

    at_hub = [request for request in requests if not request.storage]
    for limit, times in (
        (limits.api, [request.time for request in at_hub if request.api]),
        (limits.files, [request.time for request in at_hub if not request.api]),
    ):
        assert len(times) > limit  # so that there was something to wait for
        lasted = max(times) - min(times) + SLACK
        assert len(times) <= limit * (1 + lasted // limits.seconds)
    # The other worker may have had one request under way.
    early = [r for r in at_hub if r.api and refused[0] + 0.05 < r.time < refused[0] + 1.95]
    assert len(early) <= 1

    served: dict[str, list[tuple[int, int]]] = {}
    for request in requests:
        if request.storage and request.range is not None and request.sent:
            start = request.range[0]
            served.setdefault(request.path.partition("?")[0], []).append((start, start + request.sent))
    assert len(served) == 12
    for intervals in served.values():
        assert all(stop <= start for (_, stop), (start, _) in pairwise(sorted(intervals)))
