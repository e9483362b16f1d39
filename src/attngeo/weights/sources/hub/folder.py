"""Open a model on the hub: whole files if the client's cache has them, headers and byte ranges otherwise."""

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
from attngeo.io.progress import byte_text
from attngeo.io.threads import result_of
from attngeo.weights.sources.byte_checkpoint import StoredTensor
from attngeo.weights.sources.byte_file import ByteFile, LocalFile
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.discover import weights_of_file
from attngeo.weights.sources.folder import Folder, open_folder
from attngeo.weights.sources.hub.client import HubModel
from attngeo.weights.sources.hub.errors import HubRef
from attngeo.weights.sources.hub_ranges import RemoteFile

log = logging.getLogger("attngeo")


class HubFolder(Folder):
    """The files of one commit, or of one folder in it.

    prefix: of the folder, with a `/` at its end; empty for the whole repository
    """

    def __init__(self, model: HubModel, prefix: str) -> None:
        self.ref, self._model, self._prefix = str(model.ref), model, prefix
        self.names = [name.removeprefix(prefix) for name in model.snapshot.files if name.startswith(prefix)]
        self._opened: list[RemoteFile] = []
        self._ranges = model.ranges
        if not _writable(self._ranges):
            self._ranges = Path(tempfile.mkdtemp(prefix="attngeo-"))  # kept as long as this object
            weakref.finalize(self, shutil.rmtree, self._ranges, ignore_errors=True)

    def label(self, name: str) -> str:
        return f"{self._model.ref.repo}/{self._prefix}{name}"

    def open(self, name: str) -> ByteFile:
        file = self._prefix + name
        if (path := self._model.cached(file)) is not None:
            return LocalFile(path, self.label(name))
        size = self._model.size(file)
        opened = RemoteFile(
            self.label(name), size, self._ranges / file, lambda a, b, closed: self._model.pieces(file, a, b, closed)
        )
        self._opened.append(opened)
        return opened

    def path(self, name: str) -> Path:
        small = name.endswith(".json")
        return self._model.cached(self._prefix + name) or self._model.download(self._prefix + name, quiet=small)

    def inside(self, name: str) -> Folder:
        return HubFolder(self._model, f"{self._prefix}{name}/")

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        with ThreadPoolExecutor(8) as pool:  # a header costs two small requests
            try:
                return [result_of(future) for future in [pool.submit(read, name) for name in names]]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for file in self._opened:  # the pool waits for what is being fetched
                    file.close()
                raise

    def announce_downloads(self, names: Sequence[str]) -> None:
        missing = [self._prefix + name for name in names if self._model.cached(self._prefix + name) is None]
        if missing:
            size = sum(self._model.snapshot.files[name][0] or 0 for name in missing)
            log.info("%s has no safetensors: downloading all of %s, %s", self.ref, ", ".join(missing), byte_text(size))


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def hub_checkpoint(ref: HubRef | HubModel, config: Mapping[str, Any] | None) -> Checkpoint:
    """Open `org/name[/path][@revision]`, or a model of the hub whose commit is known already.

    config: used instead of the config.json of the model
    """
    model = ref if isinstance(ref, HubModel) else HubModel(ref)
    ref = model.ref
    if ref.path in model.snapshot.files:
        parent, _, name = ref.path.rpartition("/")
        folder = HubFolder(model, parent and f"{parent}/")
        return open_folder(folder, config, weights_of_file(name, folder.names, str(ref)))
    folder = HubFolder(model, ref.path and f"{ref.path}/")
    if ref.path and not folder.names:
        raise SourceError(f"{ref}: model {ref.repo!r} has no file or folder {ref.path!r}")
    return open_folder(folder, config)
