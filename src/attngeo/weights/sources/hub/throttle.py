"""`throttled`: let all requests of this process to the hub wait for their turn, in a ledger that processes share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from attngeo.weights.sources.hub.retry import asked_wait

# "api": listings; "file": content, which the hub mostly redirects to its storage; "storage": any other host
Kind = Literal["api", "file", "storage"]


class Ledger(Protocol):
    """When which request may be sent; shared by all processes that send any."""

    def reserve(self, kind: Kind) -> float:
        """Take the next free place for a request; return the seconds until then."""

    def pause(self, kind: Kind, seconds: float) -> None:
        """Let no request be sent for some time, because a server asks for it."""

    def paused(self, kind: Kind) -> float:
        """Return the seconds that are left of a pause."""


_ledger: Ledger | None = None  # global, because ranges are fetched by several threads


@contextmanager
def throttled(ledger: Ledger) -> Iterator[None]:
    """Within this context each request to the hub waits for its place in the ledger, whoever sends it."""
    global _ledger
    _install()
    before, _ledger = _ledger, ledger
    try:
        yield
    finally:
        _ledger = before


@cache
def _install() -> None:
    """Let the hub's client call the two functions below, in this process, from now on."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    # There is no public way to ask for the factory in use, which may be the user's own.
    factory = vars(_http).get("_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)

    def new_client() -> Any:
        client = factory()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], _wait_for_turn],
            "response": [*hooks["response"], _note_wait],
        }
        return client

    set_client_factory(new_client)


def kind_of(url: str) -> Kind:
    """Return what a request counts as.

    >>> from huggingface_hub import constants
    >>> [kind_of(constants.ENDPOINT + path) for path in ("/api/models/gpt2", "/gpt2/resolve/main/config.json")]
    ['api', 'file']
    >>> kind_of("https://storage.example.org/file")
    'storage'
    """
    from huggingface_hub import constants

    parts = urlsplit(url)
    if parts[:2] != urlsplit(constants.ENDPOINT)[:2]:
        return "storage"
    return "api" if parts.path.startswith("/api/") else "file"


def _wait_for_turn(request: Any) -> None:
    if (ledger := _ledger) is None:
        return
    kind = kind_of(str(request.url))
    wait = ledger.reserve(kind)
    while wait > 0:
        time.sleep(wait)
        wait = ledger.paused(kind)  # a server may have asked for more meanwhile


def _note_wait(response: Any) -> None:
    if (ledger := _ledger) is None:
        return
    # Another answer than an error also says when no requests are left.
    if (wait := asked_wait(response.headers)) is not None:
        ledger.pause(kind_of(str(response.request.url)), wait)
