"""Find the weight files among the files of a folder or a repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from attngeo.errors import SourceError
from attngeo.io.archive import parse_json

Kind = Literal["safetensors", "pickle", "gguf"]

SUFFIXES: dict[str, Kind] = {
    ".safetensors": "safetensors",
    ".bin": "pickle",
    ".pt": "pickle",
    ".pth": "pickle",
    ".ckpt": "pickle",  # Lightning
    ".gguf": "gguf",
}

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
_ADAPTER = re.compile(r"^(adapter_model|adapter)\.")
_FOREIGN = (".h5", ".msgpack", ".onnx", ".tflite", ".npz")


@dataclass(frozen=True)
class WeightFiles:
    """The files to open: listed here, or in an index that was not read yet."""

    kind: Kind
    files: tuple[str, ...]
    index: str | None = None


def find_weights(names: Sequence[str], where: str) -> WeightFiles:
    """Return the weight files among `names` (relative, with `/` between folders); only the top folder counts.

    Safetensors are preferred to pickles, and those to GGUF; the standard single file is preferred to an index. Copies
    of the same weights are left out.

    where: what the user typed, for error messages
    """
    top = sorted(name for name in names if "/" not in name)
    for kind in dict.fromkeys(SUFFIXES.values()):
        suffixes = tuple(suffix for suffix, its in SUFFIXES.items() if its == kind)
        files = [n for n in top if n.endswith(suffixes) and not _NOT_WEIGHTS.match(n) and not _ADAPTER.match(n)]
        indexes = [n for n in top if n.endswith(tuple(f"{suffix}.index.json" for suffix in suffixes))]
        if indexes and not _STANDARD & set(files):
            standard = [n for n in indexes if n.removesuffix(".index.json") in _STANDARD]
            if not standard and len(indexes) > 1:
                raise SourceError(f"{where}: several indexes ({_some(indexes)}); name the file to read")
            return WeightFiles(kind, (), (standard or indexes)[0])
        if files:
            return WeightFiles(kind, _files_of_one_model(files, where))
    raise _no_weights_error(names, top, where)


def weights_of_file(name: str, names: Sequence[str], where: str) -> WeightFiles:
    """Return the one file (or index) that the user named; a part of a split GGUF file stands for all its parts."""
    for suffix, kind in SUFFIXES.items():
        if name.endswith(f"{suffix}.index.json"):
            return WeightFiles(kind, (), name)
        if kind == "gguf" and name.endswith(suffix) and (part := _SHARD.match(name)):
            parts = [n for n in names if (other := _SHARD.match(n)) and other.group(1, 3) == part.group(1, 3)]
            return WeightFiles(kind, _files_of_one_model(sorted(parts), where))
        if name.endswith(suffix):
            return WeightFiles(kind, (name,))
    raise SourceError(f"{where}: not a file that attngeo reads, expected {', '.join(SUFFIXES)}")


def _files_of_one_model(files: list[str], where: str) -> tuple[str, ...]:
    """Return the one file, or all shards, of the one model among `files`."""
    if standard := _STANDARD & set(files):
        return tuple(standard)
    files = [name for name in files if not name.endswith(".ckpt")] or files  # exported weights are preferred
    own = [name for name in files if not name.startswith("consolidated")] or files  # the same weights under other names
    stems = {name.rpartition(".")[0] for name in own}
    # weights.fp16.safetensors beside weights.safetensors holds the same model
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


def is_weights(name: str) -> bool:
    """Return whether a file may hold weights, judged by its name; what trainers save to continue does not.

    >>> is_weights("model-00001-of-00002.safetensors"), is_weights("optimizer.pt"), is_weights("README.md")
    (True, False, False)
    """
    return name.endswith(tuple(SUFFIXES)) and not _NOT_WEIGHTS.match(PurePosixPath(name).name)


def holds_weights(names: Sequence[str]) -> bool:
    """Return whether the top folder among `names` holds weights, those of an adapter included."""
    endings = (*SUFFIXES, *(f"{suffix}.index.json" for suffix in SUFFIXES))
    return any("/" not in name and name.endswith(endings) and not _NOT_WEIGHTS.match(name) for name in names)


def folders_with_weights(names: Sequence[str]) -> list[str]:
    """Return the folders, one level down, that hold weights, sorted by name."""
    below: dict[str, list[str]] = {}
    for name in names:
        folder, _, inner = name.partition("/")
        below.setdefault(folder, []).append(inner)
    return sorted(folder for folder, inner in below.items() if holds_weights([name for name in inner if name]))


def module_paths(data: bytes) -> list[str]:
    """Return the folders in a modules.json of sentence-transformers, in their order; empty if it is not one.

    >>> module_paths(b'[{"idx": 0, "path": "0_Transformer"}, {"idx": 1, "path": "1_Pooling"}]')
    ['0_Transformer', '1_Pooling']
    """
    try:
        modules = parse_json(data)
    except ValueError:
        return []
    entries = [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    paths = [entry.get("path") for entry in entries]
    return [path for path in paths if isinstance(path, str) and is_relative_inside(path)]


def adapter_only(names: Sequence[str]) -> bool:
    """Return whether a folder holds an adapter and no weights of the model that it changes."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(tuple(SUFFIXES)) and not _NOT_WEIGHTS.match(name)]
    return ("adapter_config.json" in top or bool(weights)) and all(_ADAPTER.match(name) for name in weights)


def _no_weights_error(names: Sequence[str], top: Sequence[str], where: str) -> SourceError:
    expected = "expected *.safetensors, *.bin, *.pt, *.pth, *.ckpt or *.gguf"
    if not names:
        return SourceError(f"{where}: is empty, {expected}")
    if foreign := [name for name in top if name.endswith(_FOREIGN)]:
        return SourceError(f"{where}: has no weights that attngeo reads (found {_some(foreign)}), {expected}")
    if below := sorted({name.rpartition("/")[0] for name in names if name.endswith(tuple(SUFFIXES))}):
        return SourceError(f"{where}: has no weights itself, but in {_some(below)}; name that folder")
    return SourceError(f"{where}: has no weights, {expected}")


def is_relative_inside(name: str) -> bool:
    """Return whether a file name that is not trusted stays inside the folder it is relative to, on every system."""
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


def parse_index(data: bytes, name: str) -> dict[str, str]:
    """Return tensor name → shard from an index file; a shard must be in the folder of the index."""
    weight_map = parse_json_object(data, name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(f"{name}: has no 'weight_map' from tensor names to shard names")
    for tensor, shard in weight_map.items():
        if not is_relative_inside(shard):
            raise SourceError(f"{name}: puts tensor {tensor!r} into {shard!r}, expected a file in its own folder")
    return weight_map


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown}, …" if len(names) > 4 else shown
