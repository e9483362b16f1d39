"""Pages of the browser that record what goes wrong in them, and the reports that tests look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import attngeo

TEXT = "The old man looked at the sea and said nothing, for the night was long and the sea was calm."


@dataclass
class Watched:
    """A page of the browser, with its console errors, its uncaught exceptions and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(
        default_factory=list
    )  # other than those for the file itself and blob: and data: addresses

    def ready(self, timeout: float = 90_000) -> Watched:
        """Wait until everything is drawn."""
        self.page.wait_for_selector("html[data-ready]", timeout=timeout)
        return self

    def clean(self) -> None:
        """Fail if something went wrong in the page, or if it asked for anything."""
        assert self.errors == []
        assert self.requests == []


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Watched]]:
    """A function that opens a file, with the network cut, in a browser context of its own."""
    contexts = []

    def opened(path: Path, fragment: str = "", *, script: str | None = None, **settings: Any) -> Watched:
        context = chromium.new_context(**{"viewport": {"width": 1100, "height": 800}, **settings})
        contexts.append(context)
        context.set_offline(True)
        if script is not None:
            context.add_init_script(script)
        watched = Watched(context.new_page())
        page = watched.page
        page.on("console", lambda message: message.type == "error" and watched.errors.append(message.text))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("requestfailed", lambda request: watched.errors.append(f"failed: {request.url[:200]}"))
        address = path.as_uri()
        page.on(
            "request",
            lambda request: request.url.startswith((address, "blob:", "data:")) or watched.requests.append(request.url),
        )
        page.goto(address + fragment)
        return watched

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def pair_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the bundled encoder and decoder on a sentence."""
    pytest.importorskip("torch")
    models = [attngeo.bundled(name) for name in ("encoder", "decoder")]
    return attngeo.report(models, tmp_path_factory.mktemp("pair") / "report.html", inputs=TEXT)


@pytest.fixture(scope="session")
def encoder_organization() -> attngeo.Organization:
    """The organised attention of the bundled encoder on a sentence."""
    pytest.importorskip("torch")
    tensor = attngeo.capture(attngeo.bundled("encoder"), TEXT, stage="probabilities")
    return attngeo.organize(tensor)
