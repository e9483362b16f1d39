"""Folders of models, on this machine or on the hub: which of their files are the weights, and those opened.

find_weights, weights_of_file   the files of weights among the names of a folder; those that one named file stands for
Folder, LocalFolder             the names of the files of a model, and access to their content
open_folder                     the weights of a folder as a checkpoint
file_state                      tells whether the files of a folder have changed
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from attngeo.errors import SourceError
from attngeo.io.archive import parse_json
from attngeo.weights.sources.byte_file import ByteCheckpoint, ByteFile, LocalFile, StoredTensor
from attngeo.weights.sources.checkpoint import Checkpoint, Tensor, with_model_type, without_wrappers
from attngeo.weights.sources.numbers import adapter_error, refuse_adapter, refuse_packed

Kind = Literal["safetensors", "pickle", "gguf"]

SUFFIXES: dict[str, Kind] = {
    ".safetensors": "safetensors",
    ".bin": "pickle",
    ".pt": "pickle",
    ".pth": "pickle",
    ".ckpt": "pickle",  # Lightning
    ".gguf": "gguf",
}
_INDEX = ".index.json"
_PIPELINE = "model_index.json"  # of diffusers: the file that makes a folder a pipeline, a folder of several models
# The names that transformers and diffusers give to the weights of a model.
_STANDARD = {
    "model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
}
_SHARD = re.compile(r"^(.*)-(\d+)-of-(\d+)(\.\w+)$")
# Files that trainers write beside the weights.
_NOT_WEIGHTS = re.compile(r"^(training_args|optimizer|scheduler|rng_state|random_states|scaler|trainer_state)")
_ADAPTER = ("adapter_model.", "adapter.")
_FOREIGN = (".h5", ".msgpack", ".onnx", ".tflite", ".npz")


# ---- files of weights


@dataclass(frozen=True)
class WeightFiles:
    """The files to open: listed here, or in an index that was not read yet."""

    kind: Kind
    files: tuple[str, ...]
    index: str | None = None


def _kind(name: str) -> Kind | None:
    return SUFFIXES.get(PurePosixPath(name.removesuffix(_INDEX)).suffix)


def is_weights(name: str) -> bool:
    """Return whether a file may hold weights or their index, by its name; what trainers save to continue does not.

    >>> is_weights("model-00001-of-00002.safetensors"), is_weights("optimizer.pt"), is_weights("README.md")
    (True, False, False)
    """
    return _kind(name) is not None and not _NOT_WEIGHTS.match(PurePosixPath(name).name)


def find_weights(names: Sequence[str], where: str) -> WeightFiles:
    """Return the weight files among `names` (relative, with `/` between folders); only the top folder counts.

    Safetensors are preferred to pickles, and those to GGUF; the standard single file is preferred to an index. Copies
    of the same weights are left out.

    where: what the user typed, for error messages
    """
    top = [name for name in sorted(_top_weights(names)) if not name.startswith(_ADAPTER)]
    for kind in dict.fromkeys(SUFFIXES.values()):
        indexes = [name for name in top if _kind(name) == kind and name.endswith(_INDEX)]
        files = [name for name in top if _kind(name) == kind and not name.endswith(_INDEX)]
        if indexes and not _STANDARD & set(files):
            standard = [name for name in indexes if name.removesuffix(_INDEX) in _STANDARD]
            if not standard and len(indexes) > 1:
                raise SourceError(f"{where}: several indexes ({_some(indexes)}); name the file to read")
            return WeightFiles(kind, (), (standard or indexes)[0])
        if files:
            return WeightFiles(kind, _files_of_one_model(files, where))
    expected = "expected *.safetensors, *.bin, *.pt, *.pth, *.ckpt or *.gguf"
    if not names:
        raise SourceError(f"{where}: is empty, {expected}")
    if foreign := [name for name in sorted(names) if "/" not in name and name.endswith(_FOREIGN)]:
        raise SourceError(f"{where}: has no weights that attngeo reads (found {_some(foreign)}), {expected}")
    if below := sorted({name.rpartition("/")[0] for name in names if name.endswith(tuple(SUFFIXES))}):
        raise SourceError(f"{where}: has no weights itself, but in {_some(below)}; name that folder")
    raise SourceError(f"{where}: has no weights, {expected}")


def weights_of_file(name: str, names: Sequence[str], where: str) -> WeightFiles:
    """Return the one file (or index) that the user named; a part of a split GGUF file stands for all its parts."""
    kind = _kind(name)
    if kind is None:
        raise SourceError(f"{where}: not a file that attngeo reads, expected {', '.join(SUFFIXES)}")
    if name.endswith(_INDEX):
        return WeightFiles(kind, (), name)
    if kind == "gguf" and (part := _SHARD.match(name)):
        parts = [n for n in names if (other := _SHARD.match(n)) and other.group(1, 3) == part.group(1, 3)]
        return WeightFiles(kind, _files_of_one_model(sorted(parts), where))
    return WeightFiles(kind, (name,))


def _files_of_one_model(files: list[str], where: str) -> tuple[str, ...]:
    """Return the one file, or all shards, of the one model among `files`."""
    if standard := _STANDARD & set(files):
        return tuple(standard)
    files = [name for name in files if not name.endswith(".ckpt")] or files  # exported weights are preferred
    own = [name for name in files if not name.startswith("consolidated")] or files  # the same weights under other names
    # weights.fp16.safetensors beside weights.safetensors holds the same model
    stems = {name.rpartition(".")[0] for name in own}
    own = [name for name in own if not any(name.startswith(f"{stem}.") and name.count(".") > stem.count(".") + 1
                                           for stem in stems)]  # fmt: skip
    shards = [match for name in own if (match := _SHARD.match(name))]
    if len(shards) == len(own):
        totals = {(match[1], int(match[3])) for match in shards}
        if len(totals) > 1:
            raise SourceError(f"{where}: shards of several models ({_some(own)}); name the file to read")
        (stem, total) = totals.pop()
        missing = sorted(set(range(1, total + 1)) - {int(match[2]) for match in shards})
        if missing:
            raise SourceError(f"{where}: shard {missing[0]} of {total} of '{stem}' is missing")
    elif len(own) > 1 and own[0].endswith((".gguf", ".ckpt")):
        kind = own[0].rpartition(".")[2]
        raise SourceError(f"{where}: {len(own)} {kind.upper()} files ({_some(own)}); name the one to read")
    return tuple(own)


def _top_weights(names: Sequence[str]) -> list[str]:
    return [name for name in names if "/" not in name and is_weights(name)]


def _below(names: Sequence[str], folder: str) -> list[str]:
    return [name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown}, …" if len(names) > 4 else shown


def is_relative_inside(name: str) -> bool:
    """Return whether a file name of a server stays inside the folder it is relative to, on every system."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


def parse_json_object(data: bytes, name: str) -> dict[str, Any]:
    """Return the object in a JSON file called `name`, or raise SourceError."""
    try:
        value = parse_json(data)
    except ValueError as error:
        raise SourceError(f"{name}: is not valid JSON") from error
    if not isinstance(value, dict):
        raise SourceError(f"{name}: holds a JSON {type(value).__name__}, expected an object")
    return value


# ---- folders


class Folder(ABC):
    """The files of a model: their names (relative, with `/` between folders) and access to their content."""

    ref: str  # as the user typed it
    names: Sequence[str]

    @abstractmethod
    def label(self, name: str) -> str:
        """Return the name of a file for error messages."""

    @abstractmethod
    def open(self, name: str) -> ByteFile:
        """Open a file for reading by position."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """Return the path of a whole file on this machine; a remote one is downloaded."""

    @abstractmethod
    def inside(self, name: str) -> Folder:
        """Return the folder of this name inside this one."""

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of this name."""
        return name in self.names

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        """Return the result of `read` for each name; a remote folder reads several at a time."""
        return [read(name) for name in names]

    def announce_downloads(self, names: Sequence[str]) -> None:
        """Tell the user what will be downloaded before `path` is called for these files."""
        return None

    def content(self, name: str) -> bytes:
        """Return the content of a small file."""
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise SourceError(f"{self.label(name)}: cannot be read ({error.strerror})") from error

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file, empty if there is no such file."""
        return parse_json_object(self.content(name), self.label(name)) if self.has(name) else {}


class LocalFolder(Folder):
    """A folder on this machine."""

    def __init__(self, ref: str, root: Path) -> None:
        self.ref, self.root = ref, root
        try:
            top = list(root.iterdir())
        except OSError as error:
            raise SourceError(f"{ref}: cannot be listed ({error.strerror})") from error
        # Weights may lie one folder below: modules.json of sentence-transformers, pipelines of diffusers.
        self.names = [path.relative_to(root).as_posix() for path in (*top, *root.glob("*/*")) if path.is_file()]

    def label(self, name: str) -> str:
        return os.path.join(self.root, name)

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


# ---- opening


def open_folder(folder: Folder, config: Mapping[str, Any] | None, weights: WeightFiles | None = None) -> Checkpoint:
    """Open the weights of a folder.

    config:  used instead of the folder's config.json
    weights: the files to read; by default those that `find_weights` finds
    """
    if weights is None:
        if folder.has(_PIPELINE):
            below = {name.partition("/")[0] for name in folder.names if "/" in name}
            raise _pipeline_error(folder.ref, sorted(one for one in below if _top_weights(_below(folder.names, one))))
        folder = _transformer_folder(folder)
        if _holds_adapter(folder.names):
            base = folder.json("adapter_config.json").get("base_model_name_or_path")
            raise adapter_error(folder.ref, base if isinstance(base, str) else None)
        weights = find_weights(folder.names, folder.ref)
    settings = folder.json("config.json") if config is None else config
    model_config = with_model_type(settings) if config is not None or _describes_model(settings) else None
    weight_map = None if weights.index is None else _weight_map(folder, weights.index)
    files = weights.files if weight_map is None else tuple(dict.fromkeys(weight_map.values()))
    if weights.kind == "pickle":
        from attngeo.weights.sources.pickle_file import check_torch, load_state_dict, pickle_checkpoint

        check_torch(folder.label(files[0]))  # before anything is downloaded
        folder.announce_downloads(files)
        states = {name: load_state_dict(folder.path(name), folder.label(name)) for name in files}
        origin = {tensor: folder.label(name) for name, state in states.items() for tensor in state}
        return pickle_checkpoint(folder.ref, model_config, _merged(folder, states, weight_map), origin)
    if weights.kind == "gguf":
        from attngeo.weights.sources.gguf_file import read_gguf

        opened = {name: read_gguf(folder.open(name)) for name in files}
        tables = {name: table for name, (table, _) in opened.items()}
        own = opened[files[0]][1]
        return ByteCheckpoint(folder.ref, own if config is None else config, _merged(folder, tables, weight_map))
    from attngeo.weights.sources.safetensors_file import read_safetensors

    read = folder.map(lambda name: read_safetensors(folder.open(name), settings), files)
    stored = _merged(folder, dict(zip(files, read, strict=True)), weight_map)
    refuse_adapter(folder.ref, stored)
    refuse_packed(folder.ref, stored)
    named = {name: replace(t, info=replace(t.info, name=name)) for name, t in without_wrappers(stored).items()}
    return ByteCheckpoint(folder.ref, model_config, named)


def _pipeline_error(where: str, folders: Sequence[str]) -> SourceError:
    """Return the error for a pipeline of diffusers.

    where:   the pipeline, as the user typed it
    folders: its sub-folders that hold weights
    """
    base, at, revision = where.partition("@")
    example = f"{base.rstrip('/')}/{(*folders, 'unet')[0]}{at}{revision}"
    return SourceError(
        f"{where}: is a diffusers pipeline, a folder of several models; name the one to score: {', '.join(folders)} "
        f"(for example {example})"
    )


def _transformer_folder(folder: Folder) -> Folder:
    """Return the folder that holds the weights; in sentence-transformers models without any at the top, a module's."""
    if "modules.json" in folder.names and not _top_weights(folder.names):
        try:
            paths = [module["path"] for module in parse_json(folder.content("modules.json"))]
        except (ValueError, TypeError, KeyError) as error:
            raise SourceError(f"{folder.label('modules.json')}: is not a list of modules with paths") from error
        for path in paths:
            if _top_weights(_below(folder.names, path)):
                return folder.inside(path)
    return folder


def _holds_adapter(names: Sequence[str]) -> bool:
    """Return whether a folder holds an adapter and no weights of the model that it changes."""
    weights = _top_weights(names)
    return ("adapter_config.json" in names or bool(weights)) and all(name.startswith(_ADAPTER) for name in weights)


def _weight_map(folder: Folder, index: str) -> dict[str, str]:
    """Return tensor name → shard from an index file; the shards exist, in the folder of the index."""
    weight_map = folder.json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{folder.label(index)}: has no 'weight_map' from tensor names to shard names")
    for shard in dict.fromkeys(map(str, weight_map.values())):
        if not folder.has(shard):
            raise SourceError(f"{folder.label(shard)}: is missing, but {index!r} lists it")
    return weight_map


def _merged(
    folder: Folder, tables: Mapping[str, Mapping[str, Tensor]], weight_map: Mapping[str, str] | None
) -> dict[str, Tensor]:
    """Return the tensors of several files by name; with an index those that it lists.

    tables: file → its tensors
    """
    if weight_map is not None:
        for name, file in weight_map.items():
            if name not in tables[file]:
                raise SourceError(f"{folder.label(file)}: has no tensor {name!r}, but the index lists it there")
        return {name: tables[file][name] for name, file in weight_map.items()}
    origin: dict[str, str] = {}
    for file, table in tables.items():
        for name in table:
            if name in origin:
                both = f"{folder.label(origin[name])} and {folder.label(file)}"
                raise SourceError(f"{folder.ref}: tensor {name!r} is in both {both}; name the one file to read")
            origin[name] = file
    return {name: tables[file][name] for name, file in origin.items()}


def _describes_model(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is one of transformers or diffusers; old ones have only a head count."""
    heads = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    named = "model_type" in config or isinstance(config.get("_class_name"), str)
    return named or any(isinstance(config.get(key), int) for key in heads)
