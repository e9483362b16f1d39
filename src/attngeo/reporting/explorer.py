"""The explorer: a page on this machine that organises the attention of one model on any text.

explore           serve the page until it is interrupted
ExplorerServer    the HTTP server, on this machine only unless told otherwise; it can also be started in a thread
TextSession       one loaded model that organises texts; a newer text cancels an older one of the same side

The address holds a random token, without which nothing is answered. There are three addresses, and no file of the disk
is behind any of them:

    GET  /TOKEN/            the page
    POST /TOKEN/organise    {"side": …, "text": …} → data of the organised attention
    POST /TOKEN/report      {"side": …} → the report of what a side shows
"""

from __future__ import annotations

import itertools
import json
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.io.progress import Progress
from attngeo.live.load import ModelRef, load_model
from attngeo.organization.capture import capture
from attngeo.organization.inputs import TEXT, modality
from attngeo.organization.organize import Organization, organize
from attngeo.organization.tensor import check_stack, check_stage
from attngeo.reporting.report import report
from attngeo.show.page.attention import attention_data
from attngeo.show.page.document import explorer_html
from attngeo.version import __version__
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable

SIDES = ("left", "right")  # the two places of the page
MOST_CHARACTERS = 20_000  # of a text
LOOPBACK = ("127.0.0.1", "localhost")


# ---- texts


class Superseded(Exception):
    """A newer text for the same side has been asked for."""


class TextSession:
    """A model that is loaded once and organises one text at a time.

    >>> session = TextSession(attngeo.bundled("encoder"))
    >>> session.organise("left", "The sea was calm.")["shape"]
    [9, 9, 16]
    """

    def __init__(
        self,
        ref: ModelRef,
        *,
        stage: str = "probabilities",
        stack: str | None = None,
        truncate: bool = False,
        device: str | None = None,
    ):
        check_stage(stage)
        check_stack(stack)
        self._ref, self._device = ref, device
        self._loaded = load_model(ref, device=device)
        if self._loaded.tokenizer is None:
            raise InputError(f"{self._loaded.name}: has no tokenizer, so there is no text to explore it with")
        if modality("a text", self._loaded, stack) != TEXT:  # it would take a text for the path of an image or a sound
            raise InputError(f"{self._loaded.name}: reads images or sounds, expected a model or stack that reads text")
        self.name = self._loaded.name
        self._options: dict[str, Any] = {"stage": stage, "stack": stack, "truncate": truncate}
        self._one_at_a_time = threading.Lock()
        self._tickets = itertools.count()
        self._newest = dict.fromkeys(SIDES, -1)
        self._shown: dict[str, Organization] = {}
        self._scores: ScoreTable | None = None

    def organise(self, side: str, text: str) -> dict[str, Any]:
        """Return the organised attention on a text, as `attention_data` does.

        side: "left" or "right"; a call for the same side that is still at work ends with `Superseded`
        """
        if not text.strip():
            raise InputError("the text is empty")
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"the text has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}")
        ticket = self._newest[side] = next(self._tickets)

        def is_wanted(*_: object) -> None:
            if self._newest[side] != ticket:
                raise Superseded

        with self._one_at_a_time:
            is_wanted()
            found = self._shown[side] = self._organised(text, is_wanted)
            return attention_data(found)

    def cancel(self) -> None:
        """End all calls of `organise` that are at work or wait, with `Superseded`; return when none is at work."""
        for side in SIDES:
            self._newest[side] = next(self._tickets)
        with self._one_at_a_time:  # a thread that still computes when Python ends can abort the process
            pass

    def warm_up(self) -> None:
        """Organise a few words, so that the first text is not slower than the next: kernels are loaded on first use."""
        attention_data(self._organised("a few words", lambda *_: None))

    def _organised(self, text: str, step: Progress) -> Organization:
        tensor = capture(self._loaded, text, **self._options)
        step(0, None)
        return organize(tensor, device=self._device, progress=step)

    def report_html(self, side: str) -> bytes:
        """Return the report of the text that a side shows."""
        found = self._shown.get(side)
        if found is None:
            raise InputError("there is nothing to report yet: organise a text first")
        with self._one_at_a_time, tempfile.TemporaryDirectory(prefix="attngeo-explore-") as folder:
            if self._scores is None:
                self._scores = score(self._ref)
            return report([self._ref, self._scores, found], Path(folder) / "report.html").read_bytes()


# ---- the server


class ExplorerServer(ThreadingHTTPServer):
    """The server of one session; `address` is where a browser finds it."""

    def __init__(self, session: TextSession, host: str = "127.0.0.1", port: int = 0):
        self.session = session
        self.token = secrets.token_urlsafe(24)
        self.page = explorer_html(session.name, MOST_CHARACTERS).encode()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(f"port {port} of {host}: cannot be used ({first_line(error)})") from error
        self.host = host

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{self.host}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a browser may close a connection early, and requests of other programs are not answered."""

    def server_close(self) -> None:
        """End the work on texts, and take no more connections; threads of open ones end with the process."""
        self.session.cancel()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    server_version = f"attngeo/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve({"": lambda: ("text/html", self.server.page)})

    def do_POST(self) -> None:
        self._serve({"organise": self._organise, "report": self._report})

    def _serve(self, actions: Mapping[str, Callable[[], tuple[str, bytes]]]) -> None:
        """Answer a request with what one of the actions returns, or with the reason why it is refused."""
        prefix, _, action = self.path.rpartition("/")
        if prefix != f"/{self.server.token}" or action not in actions:
            status, why = HTTPStatus.NOT_FOUND, "there is nothing at this address"
        else:
            try:
                return self._answer(HTTPStatus.OK, *actions[action]())
            except Superseded:
                status, why = HTTPStatus.CONFLICT, "a newer text was asked for"
            except AttngeoError as error:
                status, why = HTTPStatus.BAD_REQUEST, first_line(error)
        self.close_connection = True  # what is left of the request is not read
        self._answer(status, "application/json", json.dumps({"error": why}).encode())

    def _organise(self) -> tuple[str, bytes]:
        fields = self._fields()
        data = self.server.session.organise(fields["side"], fields["text"])
        return "application/json", json.dumps(data, allow_nan=False).encode()

    def _report(self) -> tuple[str, bytes]:
        return "text/html", self.server.session.report_html(self._fields()["side"])

    def _fields(self) -> dict[str, str]:
        """Return the JSON object of a request, as the page sends it."""
        fields: dict[str, str] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return fields

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8" if kind == "text/html" else kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",  # the token stays here
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the terminal shows the address alone."""


def explore(
    ref: ModelRef,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    stage: str = "probabilities",
    stack: str | None = None,
    truncate: bool = False,
    device: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Load a model and serve the explorer until Ctrl-C.

    port:  0 takes a free one
    host:  by default only this machine can reach the page
    stage: attention "probabilities" or "logits"
    stack, truncate, device: as in `capture`
    say:   called with the address of the page
    """
    session = TextSession(ref, stage=stage, stack=stack, truncate=truncate, device=device)
    with ExplorerServer(session, host, port) as server:
        session.warm_up()
        say(server.address)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            say("stopped")
