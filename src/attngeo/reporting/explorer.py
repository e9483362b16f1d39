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

import hmac
import itertools
import json
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attngeo import __version__
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
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable

SIDES = ("left", "right")  # the two places of the page
MOST_CHARACTERS = 20_000  # of a text
LARGEST_REQUEST = 16 * MOST_CHARACTERS  # bytes: a character takes up to 4, and up to 12 as a JSON escape
SECONDS_TO_SEND = 30  # that a browser has for sending a request
LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
        if side not in SIDES:
            raise InputError(f"side {side!r}: expected left or right")
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
        """End all calls of `organise` that are at work or wait, with `Superseded`."""
        for side in SIDES:
            self._newest[side] = next(self._tickets)

    def warm_up(self) -> None:
        """Organise a few words, so that the first text is not slower than the next: kernels are loaded on first use."""
        attention_data(self._organised("a few words", lambda *_: None))

    def _organised(self, text: str, step: Progress) -> Organization:
        tensor = capture(self._loaded, text, **self._options)
        step(0, None)
        return organize(tensor, device=self._device, progress=step)  # type: ignore[arg-type]

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

    daemon_threads = False  # a thread that is still at work when Python ends can abort the process

    def __init__(self, session: TextSession, host: str = "127.0.0.1", port: int = 0):
        self.session = session
        self._connections: set[Any] = set()
        self.token = secrets.token_urlsafe(24)
        self.page = explorer_html(session.name, MOST_CHARACTERS).encode()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} of {host}: cannot be used ({first_line(error)})") from error
        self.host = host

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection early is no error."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, and remember the connection until it is closed."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop the work on texts, close all connections and wait for their threads."""
        self.session.cancel()
        for connection in tuple(self._connections):
            with suppress(OSError):  # the browser may have closed it
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    server_version = f"attngeo/{__version__}"
    sys_version = ""
    timeout = SECONDS_TO_SEND

    def do_GET(self) -> None:
        if self._action() == "":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        actions: dict[str, Callable[[dict[str, Any]], None]] = {"organise": self._organise, "report": self._report}
        action = self._action(*actions)
        if action is None or (fields := self._fields()) is None:
            return
        try:
            actions[action](fields)
        except Superseded:
            self._refuse(HTTPStatus.CONFLICT, "a newer text was asked for")
        except AttngeoError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, first_line(error))

    def _organise(self, fields: dict[str, Any]) -> None:
        data = self.server.session.organise(_text(fields, "side"), _text(fields, "text"))
        self._answer(HTTPStatus.OK, "application/json", json.dumps(data, allow_nan=False).encode("utf-8", "replace"))

    def _report(self, fields: dict[str, Any]) -> None:
        html = self.server.session.report_html(_text(fields, "side"))
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", html)

    # ---- requests

    def _action(self, *actions: str) -> str | None:
        """Return what is asked for, "" for the page itself; None, after an answer, if it is refused."""
        if not self._is_ours():
            self._refuse(HTTPStatus.FORBIDDEN, "this address does not belong to the explorer")
            return None
        _, token, *rest = self.path.split("/", 2) if self.path.count("/") >= 2 else ("", "", "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the token in the address is wrong")
            return None
        if rest[0] not in (actions or ("",)):
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            return None
        return rest[0]

    def _is_ours(self) -> bool:
        """Tell whether the browser means this server: another site may have led it here under a name of its own."""
        if self.server.host not in LOOPBACK:
            return True  # the names of a public address are not known
        names = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in names and (origin is None or origin.removeprefix("http://") in names)

    def _fields(self) -> dict[str, Any] | None:
        """Return the JSON object of a request; None, after an answer, where there is none."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
            return None
        if len(length) > 12 or int(length) > LARGEST_REQUEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LARGEST_REQUEST:,} bytes")
            return None
        try:
            fields = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not a JSON object")
            return None
        return fields

    # ---- answers

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")  # the token stays here
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._answer(status, "application/json", json.dumps({"error": why}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the terminal shows the address alone."""


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a text")
    return value


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
