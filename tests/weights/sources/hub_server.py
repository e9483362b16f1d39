"""A local server that speaks enough of the hub's API for the unmodified client, and counts what it sends."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".pt")  # reached by a redirect to the storage host, as on the hub


@dataclass(frozen=True)
class Request:
    """One request that the server received, and what it sent back."""

    method: str
    path: str
    file: str  # "" for the API
    range: tuple[int, int] | None  # [start, stop)
    status: int
    sent: int  # body bytes
    token: str | None
    storage: bool  # sent to the storage host, not to the hub itself

    @property
    def api(self) -> bool:
        return self.path.startswith("/api/")


@dataclass
class Repo:
    """A model repository: its files, and who may read it."""

    files: Mapping[str, bytes]
    gated: bool = False
    token: str | None = None  # a private model needs it
    commit: str = ""
    revisions: tuple[str, ...] = ("main",)
    moved_to: str | None = None  # the name to which the hub redirects, as for models that had no organisation

    def __post_init__(self) -> None:
        self.blobs = {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}
        listing = json.dumps(self.blobs, sort_keys=True).encode()
        self.commit = self.commit or hashlib.sha1(listing, usedforsecurity=False).hexdigest()


Fault = Callable[[Request], str | None]  # "503", "403", "cut", "empty", "whole", or None for none
# Of a request of any kind: the status and headers of a refusal, "reset" to end the connection, or None to let it pass.
Gate = Callable[[Request], tuple[int, Mapping[str, str]] | Literal["reset"] | None]


@dataclass
class HubServer:
    """A hub on this machine: `with HubServer({"org/name": Repo(files)}) as hub:`, then set HF_ENDPOINT to `hub.url`."""

    repos: Mapping[str, Repo]
    fault: Fault | None = None  # called for each range request
    gate: Gate | None = None  # called for each request
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._servers = []
        for storage in (False, True):
            handler = type("Handler", (self.handler,), {"hub": self, "storage": storage})
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            self._servers.append(server)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def handler(self) -> type[Handler]:
        """Return the class that answers requests."""
        return Handler

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def storage_url(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def sent(self, suffix: str) -> int:
        """Return the body bytes sent of files with this suffix."""
        return sum(request.sent for request in self.requests if request.file.endswith(suffix))

    def ranges(self, suffix: str = ".safetensors") -> list[tuple[int, int]]:
        """Return the byte ranges that were served, in the order of the requests."""
        return [r.range for r in self.requests if r.file.endswith(suffix) and r.range is not None and r.status == 206]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    storage: bool

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        refusal = self.hub.gate(self._record(0, 0, "", None)) if self.hub.gate else None
        if refusal == "reset":
            # Closing with unsent data and no lingering sends a reset instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif refusal is not None:
            self._send(refusal[0], b"", refusal[1])
        elif path == "/api/models":
            self._models()
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(refs|commits/main)", path):
            self._history(match[1], match[2])
        elif re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/(.+)", path):
            self._error(404, "EntryNotFound")  # no model here has a folder
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+|[^/]+?)(?:/revision/(.+))?", path):
            self._info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[2], match[3])
        else:
            self._error(404, "RepoNotFound")

    def _repo(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.token is not None and self._token() != repo.token and not self.storage):
            self._error(401 if repo is None else 404, "RepoNotFound")
            return None
        if repo.moved_to is not None:
            path = self.path.replace(f"/{name}", f"/{repo.moved_to}", 1)
            self._send(307, b"", {"Location": path})
            return None
        if revision not in (*repo.revisions, repo.commit):
            self._error(404, "RevisionNotFound")
            return None
        return repo

    def _models(self) -> None:
        """List the models of one author, two per page, as the hub does with more."""
        query = dict(parse_qsl(urlsplit(self.path).query))
        names = sorted(name for name in self.hub.repos if name.startswith(f"{query['author']}/"))
        first = int(query.get("cursor", 0))
        headers = {"Content-Type": "application/json"}
        if first + 2 < len(names):
            link = f"{self.hub.url}/api/models?author={query['author']}&cursor={first + 2}"
            headers["Link"] = f'<{link}>; rel="next"'
        self._send(
            200, json.dumps([{"id": name, "modelId": name} for name in names[first : first + 2]]).encode(), headers
        )

    def _history(self, name: str, what: str) -> None:
        """List the branches of a model, or the commits of a model that has only one branch."""
        repo = self._repo(name, "main")
        if repo is None:
            return
        if what == "refs":
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": repo.commit} for name in repo.revisions
            ]
            body: object = {"branches": branches, "tags": [], "converts": []}
        else:
            date = "2025-01-01T00:00:00.000Z"
            about = {"authors": [{"user": "someone"}], "date": date, "title": "", "message": ""}
            body = [{"id": repo.commit, **about}]
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _info(self, name: str, revision: str) -> None:
        repo = self._repo(name, revision)
        if repo is not None:
            files = [
                {"rfilename": file, "size": len(data), "blobId": repo.blobs[file][:40]}
                for file, data in repo.files.items()
            ]
            body = json.dumps({"id": name, "modelId": name, "sha": repo.commit, "siblings": files}).encode()
            self._send(200, body, {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        if repo.gated and self._token() is None and not self.storage:
            return self._error(401, "GatedRepo")
        if file not in repo.files:
            return self._error(404, "EntryNotFound", {"X-Repo-Commit": repo.commit})
        data = repo.files[file]
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{repo.blobs[file]}"', "Accept-Ranges": "bytes"}
        if file.endswith(LARGE) and not self.storage:
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": headers["ETag"]}
            return self._send(
                302,
                b"",
                {
                    **headers,
                    **linked,
                    "Location": f"{self.hub.storage_url}{self.path}?signature={len(self.hub.requests)}",
                },
                file,
            )
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            return self._send(200, data, headers, file)
        start, stop = int(found[1]), min(int(found[2]) + 1, len(data))
        fault = self.hub.fault(self._record(0, 0, file, (start, stop))) if self.hub.fault else None
        if fault in ("503", "403"):
            return self._error(int(fault), "", file=file)
        if fault == "whole":
            return self._send(200, data, headers, file)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._send(206, data[start:stop], headers, file, (start, stop), fault)

    def _error(self, status: int, code: str, headers: Mapping[str, str] | None = None, file: str = "") -> None:
        self._send(status, b"", {"X-Error-Code": code, **(headers or {})} if code else {}, file)

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _record(self, status: int, sent: int, file: str, span: tuple[int, int] | None) -> Request:
        return Request(self.command, self.path, file, span, status, sent, self._token(), self.storage)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        file: str = "",
        span: tuple[int, int] | None = None,
        fault: str | None = None,
    ) -> None:
        length = len(body)
        body = {"cut": body[: length // 2], "empty": b""}.get(fault or "", body)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        # "empty" is a valid answer without content; "cut" announces the whole length and closes half-way
        self.send_header("Content-Length", str(0 if fault == "empty" else length))
        self.end_headers()
        sent = b"" if self.command == "HEAD" else body
        self.hub.requests.append(self._record(status, len(sent), file, span))
        self.wfile.write(sent)
        if fault == "cut":
            self.close_connection = True
