"""Open a folder of files, on this machine or on the hub, as a checkpoint; tell whether files here have changed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_checkpoint import ByteCheckpoint, StoredTensor
from attngeo.weights.sources.byte_file import ByteFile, LocalFile
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.diffusers_format import PIPELINE, pipeline_error, with_model_type
from attngeo.weights.sources.discover import (
    WeightFiles,
    adapter_only,
    find_weights,
    folders_with_weights,
    holds_weights,
    module_paths,
    parse_index,
    parse_json_object,
)
from attngeo.weights.sources.quantized import adapter_error, block_size, refuse_adapter, refuse_packed
from attngeo.weights.sources.wrapper_names import without_wrappers


class Folder(ABC):
    """The files of a model: their names (relative, with `/` between folders) and access to their content."""

    ref: str  # as the user typed it
    names: Sequence[str]

    @abstractmethod
    def label(self, name: str) -> str:
        """Return the name of a file for error messages."""

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of this name."""
        return name in self.names

    @abstractmethod
    def open(self, name: str) -> ByteFile:
        """Open a file for reading by position."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """Return the path of a whole file on this machine; a remote one is downloaded."""

    @abstractmethod
    def inside(self, name: str) -> Folder:
        """Return the folder of this name inside this one."""

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        """Return the result of `read` for each name; a remote folder reads several at a time."""
        return [read(name) for name in names]

    def announce_downloads(self, names: Sequence[str]) -> None:
        """Tell the user what will be downloaded before `path` is called for these files."""
        return None


class LocalFolder(Folder):
    """A folder on this machine."""

    def __init__(self, ref: str, root: Path) -> None:
        self.ref, self.root = ref, root
        try:
            top = list(root.iterdir())
        except OSError as error:
            raise SourceError(f"{ref}: cannot be listed ({error.strerror})") from error
        # Weights may lie one folder below: modules.json of sentence-transformers, pipelines of diffusers.
        below = [entry for folder in top if folder.is_dir() for entry in _entries(folder)]
        self.names = [path.relative_to(root).as_posix() for path in top + below if path.is_file()]

    def label(self, name: str) -> str:
        return os.path.join(self.root, name)

    def has(self, name: str) -> bool:
        return os.path.isfile(self.path(name))  # Path.is_file would raise for names that are too long

    def open(self, name: str) -> ByteFile:
        return LocalFile(self.path(name), self.label(name))

    def path(self, name: str) -> Path:
        return self.root / name

    def inside(self, name: str) -> Folder:
        return LocalFolder(self.ref, self.root / name)


def file_state(path: Path) -> list[list[Any]] | None:
    """Return the names of the files of a folder, and their sizes, inodes and times; None if they cannot be listed.

    A file that is replaced changes its inode or its times, so that two states differ whenever a file may have changed.

    path: a folder, or a file, which is then the only one
    """
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    try:
        names = sorted(LocalFolder(str(path), path).names) if is_folder else [path.name]
        stats = [os.stat(folder / name) for name in names]
    except (SourceError, OSError):
        return None
    return [names, [[s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns] for s in stats]]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def open_folder(folder: Folder, config: Mapping[str, Any] | None, weights: WeightFiles | None = None) -> Checkpoint:
    """Open the weights of a folder.

    config:  used instead of the folder's config.json
    weights: the files to read; by default those that `find_weights` finds
    """
    if weights is None and folder.has(PIPELINE):
        raise pipeline_error(folder.ref, folders_with_weights(folder.names))
    if weights is None:
        folder = _transformer_folder(folder)
    if weights is None and adapter_only(folder.names):
        raise adapter_error(folder.ref, _base_of(folder))
    weights = weights or find_weights(folder.names, folder.ref)
    settings = _read_object(folder, "config.json") if config is None else config
    model_config = with_model_type(settings) if config is not None or _describes_model(settings) else None
    files, weight_map = _files(folder, weights)
    if weights.kind == "pickle":
        from attngeo.weights.sources.pickle_file import check_torch, pickle_checkpoint

        check_torch(folder.label(files[0]))  # before anything is downloaded
        folder.announce_downloads(files)
        paths = [(folder.label(name), folder.path(name)) for name in files]
        return pickle_checkpoint(folder.ref, model_config, paths, weight_map)
    if weights.kind == "gguf":
        from attngeo.weights.sources.gguf_file import read_gguf

        opened = [read_gguf(folder.open(name)) for name in files]
        stored_tensors = _union(folder, [table for table, _ in opened])
        return ByteCheckpoint(folder.ref, opened[0][1] if config is None else config, stored_tensors)
    from attngeo.weights.sources.safetensors_file import read_safetensors

    def read(name: str) -> dict[str, StoredTensor]:
        return read_safetensors(folder.open(name), settings)

    tables = folder.map(read, files)
    if weight_map is None:
        stored_tensors = _union(folder, tables)
    else:
        stored_tensors = _indexed(folder, dict(zip(files, tables, strict=True)), weight_map)
    refuse_adapter(folder.ref, stored_tensors)
    refuse_packed(folder.ref, stored_tensors)
    renamed = without_wrappers(stored_tensors)
    if renamed is not stored_tensors:
        stored_tensors = {name: replace(t, info=replace(t.info, name=name)) for name, t in renamed.items()}
    return ByteCheckpoint(folder.ref, model_config, stored_tensors, block=block_size(settings))


def _transformer_folder(folder: Folder) -> Folder:
    """Return the folder that holds the weights; in sentence-transformers models without any at the top, a module's."""
    if "modules.json" in folder.names and not holds_weights(folder.names):
        for path in module_paths(_content(folder, "modules.json")):
            if holds_weights([name.removeprefix(f"{path}/") for name in folder.names if name.startswith(f"{path}/")]):
                return folder.inside(path)
    return folder


def _files(folder: Folder, weights: WeightFiles) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Return the weight files, all of which exist, and tensor name → file if there is an index."""
    if weights.index is None:
        return weights.files, None
    index = folder.label(weights.index)
    weight_map = parse_index(_content(folder, weights.index), index)
    if not weight_map:
        raise SourceError(f"{index}: lists no tensors, expected at least one")
    files = tuple(dict.fromkeys(weight_map.values()))
    for shard in files:
        if not folder.has(shard):
            raise SourceError(f"{folder.label(shard)}: is missing, but {weights.index!r} lists it")
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
            raise SourceError(f"{folder.label(shard)}: has no tensor {name!r}, but the index lists it there")
    return {name: tables[shard][name] for name, shard in weight_map.items()}


def _describes_model(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is one of transformers or diffusers; old ones have only a head count."""
    heads = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    named = "model_type" in config or isinstance(config.get("_class_name"), str)
    return named or any(isinstance(config.get(key), int) for key in heads)


def _read_object(folder: Folder, name: str) -> dict[str, Any]:
    """Return the object in a JSON file of the folder, empty if there is no such file."""
    return parse_json_object(_content(folder, name), folder.label(name)) if folder.has(name) else {}


def _content(folder: Folder, name: str) -> bytes:
    try:
        return folder.path(name).read_bytes()
    except OSError as error:
        raise SourceError(f"{folder.label(name)}: cannot be read ({error.strerror})") from error


def _base_of(folder: Folder) -> str | None:
    """Return the model that an adapter changes, if its config says so."""
    base = _read_object(folder, "adapter_config.json").get("base_model_name_or_path")
    return base if isinstance(base, str) else None
