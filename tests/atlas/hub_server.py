"""A hub on this machine that limits requests and sometimes fails: 429, 503, a reset connection, half a body."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tests.atlas.small_models import MORE_LAYOUTS, model_files
from tests.weights.sources.hub_server import Handler, HubServer, Repo

Kind = Literal["api", "file", "storage"]
FAULTS = ("429", "503", "reset", "half")
IN_A_ROW = 2  # times that the same request fails; a client gives up after five


def small_repos(count: int, layers: int = 2) -> dict[str, Repo]:
    """Return models of all layouts in turn, with weights of their own."""
    names = list(MORE_LAYOUTS)
    repos = {}
    for i in range(count):
        layout = names[i % len(names)]
        files = model_files(layout, i, layers)
        content = {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in files.items()}
        repos[f"org/{i:03}-{layout}"] = Repo(content)
    return repos


@dataclass
class UnreliableHub(HubServer):
    """A hub that disturbs a share of requests and refuses all for `seconds` after each `limits` of a kind."""

    limits: Mapping[Kind, int] = field(default_factory=dict)
    seconds: float = 1.0
    share: float = 0.1  # of requests that are disturbed
    seed: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # how often each was played
    refused: int = 0  # requests over the limit

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()  # faults in a row of one request
        self._asked: Counter[Kind] = Counter()
        self._closed: dict[Kind, float] = {}  # until when

    @property
    def handler(self) -> type[Handler]:
        return _UnreliableHandler

    def verdict(self, kind: Kind, request: str) -> str | None:
        """Return what happens to a request: "limit", one of the faults, or None: it is answered."""
        with self._lock:
            now = time.monotonic()
            if now < self._closed.get(kind, 0.0):
                self.refused += 1
                return "limit"
            self._asked[kind] += 1
            if kind in self.limits and self._asked[kind] % self.limits[kind] == 0:
                self._closed[kind] = now + self.seconds
            if self._random.random() >= self.share or self._failed[request] >= IN_A_ROW:
                self._failed[request] = 0
                return None
            self._failed[request] += 1
            fault = self._random.choice(FAULTS)
            self.faults[fault] += 1
            return fault

    def fetched_twice(self) -> int:
        """Return how many bytes of weights arrived more than once, not counting broken transfers."""
        whole: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for request in self.requests:
            if (
                request.range is not None
                and request.status == 206
                and request.sent == request.range[1] - request.range[0]
            ):
                whole[request.path.partition("?")[0]].append(request.range)
        twice = 0
        for ranges in whole.values():
            position = 0
            for start, stop in sorted(ranges):
                twice += max(0, min(position, stop) - start)
                position = max(position, stop)
        return twice


class _UnreliableHandler(Handler):
    hub: UnreliableHub
    fault: str | None = None

    def _answer(self) -> None:
        kind: Kind = "storage" if self.storage else "api" if self.path.startswith("/api/") else "file"
        request = f"{self.command} {self.path.partition('?')[0]} {self.headers.get('Range')}"
        self.fault = self.hub.verdict(kind, request)
        if self.fault in ("limit", "429"):
            wait = str(int(self.hub.seconds) + 1) if self.fault == "limit" else "1"
            self._send(429, b"", {"Retry-After": wait})
        elif self.fault == "503":
            self._send(503, b"", {})
        elif self.fault == "reset":
            # Closing with unsent data and no lingering sends a reset instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        else:
            super()._answer()

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        file: str = "",
        span: tuple[int, int] | None = None,
        fault: str | None = None,
    ) -> None:
        half = self.fault == "half" and body and self.command != "HEAD"
        super()._send(status, body, headers, file, span, "cut" if half else fault)
