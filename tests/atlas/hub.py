"""A hub on this machine for the commands of an atlas, and one that limits requests and sometimes fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.atlas.kills import ROOT
from tests.atlas.small_models import LAYOUTS, model_files
from tests.weights.sources.hub_server import HubServer, Repo, Request

FAULTS = ("429", "503", "reset", "half")


def small_repo(layout: str, seed: int = 0, layers: int = 2, revisions: tuple[str, ...] = ("main",)) -> Repo:
    """Return a model with random weights."""
    files = model_files(layout, seed, layers)
    content = {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in files.items()}
    return Repo(content, revisions=revisions)


def small_repos(count: int) -> dict[str, Repo]:
    """Return models of all layouts in turn, with weights of their own."""
    layouts = [list(LAYOUTS)[i % len(LAYOUTS)] for i in range(count)]
    return {f"org/{i:03}-{layout}": small_repo(layout, i) for i, layout in enumerate(layouts)}


def environment(home: Path, url: str, cache: Path | None = None) -> dict[str, str]:
    """Return the environment of a process that uses a hub at `url` and empty caches."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
    places = {"HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(cache or home / "cache")}
    return {**kept, **places, "HF_HUB_DISABLE_XET": "1"}


def atlas_command(
    home: Path, url: str, *arguments: object, cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `attngeo atlas` in a process of its own, because the client reads its environment when it is imported."""
    call = [sys.executable, "-W", "error", "-m", "attngeo", "atlas", *map(str, arguments)]
    places = environment(home, url, cache)
    return subprocess.run(call, cwd=ROOT, env=places, capture_output=True, text=True, timeout=300)


@dataclass
class UnreliableHub(HubServer):
    """A hub that disturbs every few requests and refuses all for `seconds` after each `limits` of a kind."""

    limits: Mapping[str, int] = field(default_factory=dict)  # of requests to the API, and for files
    seconds: float = 1.0
    every: int = 12  # one of so many requests is disturbed, and the answer of one of so many ranges is cut
    faults: Counter[str] = field(default_factory=Counter)  # how often each was played
    refused: int = 0  # requests over the limit

    def __post_init__(self) -> None:
        self.gate, self.fault = self._refusal, self._cut
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()  # requests of each kind
        self._closed: dict[str, float] = defaultdict(float)  # until when

    def _refusal(self, request: Request) -> tuple[int, Mapping[str, str]] | str | None:
        """Return how a request is refused; None: it is answered."""
        kind = "storage" if request.storage else "api" if request.api else "file"
        with self._lock:
            now = time.monotonic()
            if kind in self.limits and self._closed[kind] <= now:
                self._asked[kind] += 1
                if self._asked[kind] > self.limits[kind]:
                    self._asked[kind], self._closed[kind] = 0, now + self.seconds
            if self._closed[kind] > now:
                self.refused += 1
                return 429, {"Retry-After": str(int(self.seconds) + 1)}
            fault = self._fault("any", FAULTS[:3])
        return {"429": (429, {"Retry-After": "1"}), "503": (503, {}), "reset": "reset", None: None}[fault]

    def _cut(self, request: Request) -> str | None:
        """Return whether the answer of a range ends halfway."""
        with self._lock:
            return None if self._fault("range", FAULTS[3:]) is None else "cut"

    def _fault(self, kind: str, faults: Sequence[str]) -> str | None:
        self._asked[kind] += 1
        turn, rest = divmod(self._asked[kind], self.every)
        if rest:
            return None
        self.faults[fault := faults[turn % len(faults)]] += 1
        return fault

    def fetched_twice(self) -> int:
        """Return how many bytes of weights arrived more than once, not counting broken transfers."""
        whole: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for one in self.requests:
            if one.range is not None and one.status == 206 and one.sent == one.range[1] - one.range[0]:
                whole[one.path.partition("?")[0]].append(one.range)
        twice = 0
        for ranges in whole.values():
            position = 0
            for start, stop in sorted(ranges):
                twice += max(0, min(position, stop) - start)
                position = max(position, stop)
        return twice
