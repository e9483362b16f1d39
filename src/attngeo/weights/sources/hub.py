"""A model on the hub: whole files where the client's cache has them, headers and byte ranges otherwise."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_checkpoint import StoredTensor
from attngeo.weights.sources.byte_file import ByteFile, LocalFile
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.discover import named_file
from attngeo.weights.sources.folder import Folder, open_folder
from attngeo.weights.sources.hub_client import Hub, HubRef
from attngeo.weights.sources.hub_ranges import RemoteFile

log = logging.getLogger("attngeo")


class HubFolder(Folder):
    """The files of one commit, or of one folder in it."""

    def __init__(self, hub: Hub, prefix: str) -> None:
        self.ref, self._hub, self._prefix = str(hub.ref), hub, prefix
        self.names = [name.removeprefix(prefix) for name in hub.snapshot.files if name.startswith(prefix)]
        self._ranges = hub.ranges
        if not _writable(self._ranges):
            self._ranges = Path(tempfile.mkdtemp(prefix="attngeo-"))  # kept for this call only
            weakref.finalize(self, shutil.rmtree, self._ranges, ignore_errors=True)

    def label(self, name: str) -> str:
        return f"{self._hub.ref.repo}/{self._prefix}{name}"

    def open(self, name: str) -> ByteFile:
        file = self._prefix + name
        if (path := self._hub.cached(file)) is not None:
            return LocalFile(path, self.label(name))
        size = self._hub.size(file)
        return RemoteFile(self.label(name), size, self._ranges / file, lambda a, b: self._hub.pieces(file, a, b))

    def path(self, name: str) -> Path:
        small = name.endswith(".json")
        return self._hub.cached(self._prefix + name) or self._hub.download(self._prefix + name, quiet=small)

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        with ThreadPoolExecutor(8) as pool:  # a header is two small requests
            return list(pool.map(read, names))

    def announce(self, names: Sequence[str]) -> None:
        missing = [self._prefix + name for name in names if self._hub.cached(self._prefix + name) is None]
        if missing:
            size = sum(self._hub.snapshot.files[name][0] or 0 for name in missing)
            log.info("%s has no safetensors: downloading %s whole, %s", self.ref, ", ".join(missing), _bytes(size))


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def hub_checkpoint(ref: HubRef, config: Mapping[str, Any] | None) -> Checkpoint:
    """Open `org/name[/path][@revision]`."""
    hub = Hub(ref)
    if ref.path in hub.snapshot.files:
        parent, _, name = ref.path.rpartition("/")
        folder = HubFolder(hub, parent and f"{parent}/")
        return open_folder(folder, config, named_file(name, folder.names, str(ref)))
    folder = HubFolder(hub, ref.path and f"{ref.path}/")
    if ref.path and not folder.names:
        raise SourceError(f"{ref}: model {ref.repo!r} has no file or folder {ref.path!r}")
    return open_folder(folder, config)
