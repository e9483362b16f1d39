"""Open a checkpoint by whatever names it: a folder, a file, a hub id, a torch module or a state dict."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attngeo.errors import SourceError, reason
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.folder import SUFFIXES, LocalFolder, open_folder, parse_json_object, weights_of_file

if TYPE_CHECKING:
    from torch import nn

    from attngeo.weights.sources.hub import HubRef

# A string, so that the definition does not import torch.
CheckpointRef: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | nn.Module | Checkpoint"
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<path>[^@]+))?(?:@(?P<revision>.+))?")


def open_checkpoint(
    ref: CheckpointRef, *, config: Mapping[str, Any] | str | os.PathLike[str] | None = None
) -> Checkpoint:
    """Return an open checkpoint; its weights are not read yet.

    ref: a folder or file, a hub id `org/name[@revision]` (or `org/name/file[@revision]`), the address of a model's page
        on the hub, a torch.nn.Module, or a mapping of names to tensors or arrays. A path that exists wins over a hub id
        of the same name. A Checkpoint that is already open is returned as it is.
    config: the transformers config, or the path of a config.json, instead of the one beside the weights

    >>> from attngeo.weights.sources.checkpoint import ReadRequest
    >>> with open_checkpoint(attngeo.bundled("encoder")) as checkpoint:
    ...     checkpoint.read(ReadRequest("bert.encoder.layer.0.attention.self.query.weight")).shape
    (128, 128)
    """
    if isinstance(ref, Checkpoint):
        return ref
    settings = _load_config(config)
    if isinstance(ref, str | os.PathLike):
        return _open_named(os.fspath(ref), settings)
    torch = sys.modules.get("torch")  # whoever has a module has imported torch
    if torch is not None and isinstance(ref, torch.nn.Module):
        from attngeo.weights.sources.memory import module_checkpoint

        return module_checkpoint(ref, settings)
    if isinstance(ref, Mapping):
        from attngeo.weights.sources.memory import mapping_checkpoint

        return mapping_checkpoint(ref, settings)
    raise SourceError(f"{type(ref).__name__}: expected a folder, a file, a hub id, a torch module or a state dict")


def _open_named(ref: str, config: Mapping[str, Any] | None) -> Checkpoint:
    """Open a path, or a hub id if there is no such path."""
    path = Path(os.path.expanduser(ref))
    if os.path.exists(path) and ref:  # "" would be the folder here
        if path.is_dir():
            return open_folder(LocalFolder(ref, path), config)
        folder = LocalFolder(ref, path.parent)
        return open_folder(folder, config, weights_of_file(path.name, folder.names, ref))
    from attngeo.weights.sources.hub_files import hub_checkpoint  # late: local files do not need the hub

    return hub_checkpoint(hub_reference(ref), config)


def hub_reference(ref: str) -> HubRef:
    """Return what a name that is no path stands for on the hub: an id `org/name[/path][@revision]`, or an address.

    >>> hub_reference("org/name@v1.0")
    HubRef(repo='org/name', path='', revision='v1.0')
    """
    from attngeo.weights.sources.hub import HubRef, is_address, parse_address  # late: local files do not need the hub

    if is_address(ref):
        return parse_address(ref)
    if looks_like_path(ref):
        kind = "file" if ref.endswith(tuple(SUFFIXES)) else "folder"
        raise SourceError(f"{ref}: no such {kind}")
    match = _HUB_ID.fullmatch(ref)
    if match is None:
        raise SourceError(f"{ref!r}: no such folder, and not a hub id; expected a folder or `org/name[@revision]`")
    return HubRef(match["repo"], (match["path"] or "").rstrip("/"), match["revision"] or "main")


def looks_like_path(ref: str) -> bool:
    """Return whether `ref` can only be a path: absolute, starting with a dot, a weights file, or in a folder here."""
    if ref.startswith(("/", ".", "~")) or "\\" in ref or ref.endswith("/"):
        return True
    first, *rest = ref.partition("@")[0].split("/")
    return os.path.isdir(first) if len(rest) >= 2 else ref.endswith(tuple(SUFFIXES))


def _load_config(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> Mapping[str, Any] | None:
    """Return a config that is given as a mapping or as the path of a JSON file."""
    if config is None or isinstance(config, Mapping):
        return config
    path = Path(os.path.expanduser(config))
    try:
        return parse_json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read as a config ({reason(error)})") from error
