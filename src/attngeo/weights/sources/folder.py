"""A folder of files, here or on the hub, opened as a checkpoint."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_checkpoint import ByteCheckpoint, StoredTensor
from attngeo.weights.sources.byte_file import ByteFile, LocalFile
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.discover import Weights, adapter_only, find_weights, parse_index, parse_json
from attngeo.weights.sources.quantized import block_size, refuse_adapter, refuse_packed


class Folder(ABC):
    """File names (relative, `/` between folders) and ways to get at them."""

    ref: str  # as the user typed it
    names: Sequence[str]

    @abstractmethod
    def label(self, name: str) -> str:
        """The file as error messages call it."""

    def has(self, name: str) -> bool:
        """Whether the folder has a file of this name."""
        return name in self.names

    @abstractmethod
    def open(self, name: str) -> ByteFile:
        """The file for reading by position."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """The whole file on this machine."""

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        """`read` of every file."""
        return [read(name) for name in names]

    def announce(self, names: Sequence[str]) -> None:
        """`path` of all these is about to be asked for: the moment to say what that costs."""
        return None


class LocalFolder(Folder):
    """A folder on this machine."""

    def __init__(self, ref: str, root: Path) -> None:
        self.ref, self.root = ref, root
        try:
            top = list(root.iterdir())
        except OSError as error:
            raise SourceError(f"{ref}: cannot be listed ({error.strerror})") from error
        # one level down is only listed to be pointed to when there is nothing here
        below = [entry for folder in top if folder.is_dir() for entry in _entries(folder)]
        self.names = [path.relative_to(root).as_posix() for path in top + below if path.is_file()]

    def label(self, name: str) -> str:
        return os.path.join(self.root, name)

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def open(self, name: str) -> ByteFile:
        return LocalFile(self.path(name), self.label(name))

    def path(self, name: str) -> Path:
        return self.root / name


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def open_folder(folder: Folder, config: Mapping[str, Any] | None, weights: Weights | None = None) -> Checkpoint:
    """Open the weights of a folder: those given, else those that `find_weights` finds."""
    if weights is None and adapter_only(folder.names):
        raise refuse_adapter(folder.ref, _base_of(folder))
    weights = weights or find_weights(folder.names, folder.ref)
    stored = _object(folder, "config.json") if config is None else config
    given = config is not None or _is_transformers(stored)
    files, weight_map = _files(folder, weights)
    if weights.kind == "pickle":
        from attngeo.weights.sources.pickle_file import check_torch, pickle_checkpoint

        check_torch(folder.label(files[0]))  # before anything is downloaded for nothing
        folder.announce(files)
        paths = [(folder.label(name), folder.path(name)) for name in files]
        return pickle_checkpoint(folder.ref, stored if given else None, paths, weight_map)
    if weights.kind == "gguf":
        from attngeo.weights.sources.gguf_file import read_gguf

        opened = [read_gguf(folder.open(name)) for name in files]
        stored_tensors = _union(folder, [table for table, _ in opened])
        return ByteCheckpoint(folder.ref, opened[0][1] if config is None else config, stored_tensors)
    from attngeo.weights.sources.safetensors_file import read_safetensors

    def read(name: str) -> dict[str, StoredTensor]:
        return read_safetensors(folder.open(name), stored)

    tables = folder.map(read, files)
    if weight_map is None:
        stored_tensors = _union(folder, tables)
    else:
        stored_tensors = _indexed(folder, dict(zip(files, tables, strict=True)), weight_map)
    refuse_packed(folder.ref, stored_tensors)
    return ByteCheckpoint(folder.ref, stored if given else None, stored_tensors, block=block_size(stored))


def _files(folder: Folder, weights: Weights) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """The weight files, all there, and tensor → file where an index says it."""
    if weights.index is None:
        return weights.files, None
    index = folder.label(weights.index)
    weight_map = parse_index(folder.path(weights.index).read_bytes(), index)
    if not weight_map:
        raise SourceError(f"{index}: lists no tensors")
    files = tuple(dict.fromkeys(weight_map.values()))
    for shard in files:
        if not folder.has(shard):
            raise SourceError(f"{folder.label(shard)}: missing, but listed in {weights.index!r}")
    return files, weight_map


def _union(folder: Folder, tables: Sequence[Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    stored_tensors: dict[str, StoredTensor] = {}
    for table in tables:
        for name, stored in table.items():
            if name in stored_tensors:
                both = f"{stored_tensors[name].info.file} and {stored.info.file}"
                raise SourceError(f"{folder.ref}: tensor {name!r} is in both {both}; name the one file to read")
            stored_tensors[name] = stored
    return stored_tensors


def _indexed(
    folder: Folder, tables: Mapping[str, dict[str, StoredTensor]], weight_map: Mapping[str, str]
) -> dict[str, StoredTensor]:
    for name, shard in weight_map.items():
        if name not in tables[shard]:
            raise SourceError(f"{folder.label(shard)}: has no tensor {name!r}, though the index puts it there")
    return {name: tables[shard][name] for name, shard in weight_map.items()}


def _is_transformers(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is transformers' (old ones have no model type); another program's says nothing to us."""
    heads = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    return "model_type" in config or (
        "_class_name" not in config and any(isinstance(config.get(k), int) for k in heads)
    )


def _object(folder: Folder, name: str) -> dict[str, Any]:
    """A JSON file of the folder; without it, nothing."""
    return parse_json(folder.path(name).read_bytes(), folder.label(name)) if folder.has(name) else {}


def _base_of(folder: Folder) -> str | None:
    base = _object(folder, "adapter_config.json").get("base_model_name_or_path")
    return base if isinstance(base, str) else None
