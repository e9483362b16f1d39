"""`open_checkpoint`: whatever the user names a model by, as a Checkpoint."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.discover import SUFFIXES, named_file, parse_json

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<path>[^@]+))?(?:@(?P<revision>.+))?")


def open_checkpoint(
    ref: str | os.PathLike[str] | Mapping[str, Any] | Any,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Checkpoint:
    """Open a checkpoint without reading its weights.

    ref: a folder or file, a hub id `org/name[@revision]` (or `org/name/file[@revision]`), a torch.nn.Module, or a
        mapping of names to tensors or arrays. A path that exists wins over a hub id of the same name. A Checkpoint that
        is open already is taken as it is.
    config: the transformers config, or the path of a config.json, in place of the one found beside the weights.

    >>> with open_checkpoint("bert-folder") as checkpoint:
    ...     query = checkpoint.read(ReadRequest("encoder.layer.0.attention.self.query.weight"))
    """
    if isinstance(ref, Checkpoint):
        return ref
    settings = _config(config)
    if isinstance(ref, str | os.PathLike):
        return _named(os.fspath(ref), settings)
    torch = sys.modules.get("torch")  # a module can only come from a torch that is already here
    if torch is not None and isinstance(ref, torch.nn.Module):
        from attngeo.weights.sources.memory import module_checkpoint

        return module_checkpoint(ref, settings)
    if isinstance(ref, Mapping):
        from attngeo.weights.sources.memory import mapping_checkpoint

        return mapping_checkpoint(ref, settings)
    raise SourceError(f"{type(ref).__name__}: a folder, a file, a hub id, a torch module or a state dict expected")


def _named(ref: str, config: Mapping[str, Any] | None) -> Checkpoint:
    path = Path(os.path.expanduser(ref))
    if os.path.exists(path) and ref:  # not Path.exists: that raises for names too long or out of reach
        from attngeo.weights.sources.folder import LocalFolder, open_folder

        if path.is_dir():
            return open_folder(LocalFolder(ref, path), config)
        folder = LocalFolder(ref, path.parent)
        return open_folder(folder, config, named_file(path.name, folder.names, ref))
    if _looks_like_path(ref):
        kind = "file" if ref.endswith(tuple(SUFFIXES)) else "folder"
        raise SourceError(f"{ref}: no such {kind}")
    match = _HUB_ID.fullmatch(ref)
    if match is None:
        raise SourceError(f"{ref!r}: no such folder, and not a hub id; a folder or `org/name[@revision]` expected")
    from attngeo.weights.sources.hub import hub_checkpoint
    from attngeo.weights.sources.hub_client import HubRef

    return hub_checkpoint(HubRef(match["repo"], (match["path"] or "").rstrip("/"), match["revision"] or "main"), config)


def _looks_like_path(ref: str) -> bool:
    """Something nobody would name a hub model by: rooted, relative by dots, a weights file, deep in a folder here."""
    if ref.startswith(("/", ".", "~")) or "\\" in ref or ref.endswith("/"):
        return True
    first, *rest = ref.partition("@")[0].split("/")
    return os.path.isdir(first) if len(rest) >= 2 else ref.endswith(tuple(SUFFIXES))


def _config(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> Mapping[str, Any] | None:
    if config is None or isinstance(config, Mapping):
        return config
    path = Path(os.path.expanduser(config))
    try:
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read as a config ({error.strerror})") from error
