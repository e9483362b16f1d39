"""One running explorer of the bundled encoder for all tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import attngeo
from attngeo.reporting.explorer import ExplorerServer, TextSession


@pytest.fixture(scope="package")
def server() -> Iterator[ExplorerServer]:
    with ExplorerServer(TextSession(attngeo.bundled("encoder"))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def session(server: ExplorerServer) -> TextSession:
    return server.session
