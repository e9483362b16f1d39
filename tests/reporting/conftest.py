"""Pages of the browser that record what goes wrong in them, and the reports that tests look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import attngeo

TEXT = "The old man looked at the sea and said nothing, for the night was long and the sea was calm."
OPEN = {"viewport": {"width": 1200, "height": 800}}


@dataclass
class Watched:
    """A page of the browser, with its console errors, its uncaught exceptions and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # other than those for itself, and blob: and data: addresses

    @classmethod
    def open(cls, context: Any, address: str, fragment: str = "") -> Watched:
        watched = cls(context.new_page())
        page, errors, own = watched.page, watched.errors, (address, "blob:", "data:")
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(f"failed: {request.url[:200]}"))
        page.on("request", lambda request: request.url.startswith(own) or watched.requests.append(request.url))
        page.goto(address + fragment)
        return watched

    def ready(self) -> Watched:
        """Wait until everything is drawn."""
        self.page.wait_for_selector("html[data-ready]", timeout=90_000)
        return self

    def clean(self) -> None:
        """Fail if something went wrong in the page, or if it asked for anything."""
        assert self.errors == []
        assert self.requests == []


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Watched]]:
    """A function that opens a file, with the network cut, in a browser context of its own."""
    contexts = []

    def opened(path: Path, *, script: str | None = None, **settings: Any) -> Watched:
        context = chromium.new_context(**OPEN | settings)
        contexts.append(context)
        context.set_offline(True)
        if script is not None:
            context.add_init_script(script)
        return Watched.open(context, path.as_uri())

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
def pages(chromium: Any, pair_report: Path) -> Iterator[dict[str, Watched]]:
    """That report, opened offline at a head, in light and in dark colours; tests leave it as they found it."""
    contexts = {scheme: chromium.new_context(**OPEN, color_scheme=scheme) for scheme in ("light", "dark")}
    for context in contexts.values():
        context.set_offline(True)
    address = pair_report.as_uri()
    yield {scheme: Watched.open(context, address, "#L2H1").ready() for scheme, context in contexts.items()}
    for context in contexts.values():
        context.close()


@pytest.fixture
def pair_page(pages: dict[str, Watched]) -> Watched:
    return pages["light"]


@pytest.fixture(scope="session")
def encoder_organization() -> attngeo.Organization:
    """The organised attention of the bundled encoder on the sentence."""
    pytest.importorskip("torch")
    return attngeo.organize(attngeo.capture(attngeo.bundled("encoder"), TEXT, stage="probabilities"))
