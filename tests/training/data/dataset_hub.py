"""A local server with the part of the hub's data-set API that the `datasets` library uses."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def dataset_hub(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve a data set with these files (path -> content); yield the address, to which HF_ENDPOINT must be set."""
    handler = type("Handler", (_Handler,), {"name": name, "files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name: str
    files: Mapping[str, bytes]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        path = unquote(urlsplit(self.path).path)
        api = f"/api/datasets/{self.name}"
        if match := re.fullmatch(rf"/datasets/{self.name}/resolve/[^/]+/(.+)", path):
            self._file(match[1])
        elif path == api or path.startswith(f"{api}/revision/"):
            siblings = [{"rfilename": file} for file in self.files]
            self._json({"id": self.name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})
        elif match := re.fullmatch(rf"{api}/tree/[^/]+/?(.*)", path):
            self._json(self._listing(match[1]))
        elif path.startswith(f"{api}/paths-info/"):
            asked = parse_qs(body.decode()).get("paths", []) if b"paths=" in body else json.loads(body)["paths"]
            self._json([entry for wanted in asked for entry in self._entries(wanted)])
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _listing(self, folder: str) -> list[dict[str, Any]]:
        """Return the entries directly in a folder."""
        start = f"{folder}/" if folder else ""
        inside = dict.fromkeys(file[len(start) :].split("/")[0] for file in self.files if file.startswith(start))
        return [entry for name in inside for entry in self._entries(start + name)]

    def _entries(self, wanted: str) -> list[dict[str, Any]]:
        """Return the entry of a path, a file or a folder, in a list; an empty list if it does not exist."""
        if wanted in self.files:
            return [self._entry(wanted)]
        inside = any(file.startswith(f"{wanted}/") for file in self.files)
        return [{"type": "directory", "path": wanted, "oid": COMMIT, "size": 0}] if inside else []

    def _entry(self, file: str) -> dict[str, Any]:
        digest = hashlib.sha1(self.files[file], usedforsecurity=False).hexdigest()
        return {"type": "file", "path": file, "oid": digest, "size": len(self.files[file])}

    def _file(self, file: str) -> None:
        if file not in self.files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        data = self.files[file]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self._entry(file)["oid"]}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self._send(200, data, headers)
        start, stop = int(span[1]), min(int(span[2] or len(data) - 1) + 1, len(data))
        self._send(206, data[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
