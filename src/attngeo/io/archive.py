"""Save each result to one file: named arrays and a JSON description (.npz), or JSON alone.

Files are written atomically. Reading checks everything that a damaged file could get wrong before memory is allocated
for it, and raises InputError with the name of the file.
"""

from __future__ import annotations

import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import file_path
from attngeo.errors import InputError
from attngeo.io.atomic import atomic_file, check_writable, write_errors
from attngeo.io.plain import parse_json, plain_value

Array = NDArray[Any]
DESCRIPTION = "about"  # name of the array that holds the JSON description, as UTF-8 bytes
_CHUNK = 1 << 20  # bytes copied at a time, so that a large array is in memory only once
_DEFLATE = 1100  # bytes that one compressed byte can stand for, at most
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What the zip, NumPy and JSON readers, and code that uses what they return, raise for a damaged file.
_DAMAGE = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError,
    SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def save_arrays(path: str | Path, kind: str, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> Path:
    """Write arrays and a JSON description to an .npz file, and return its path.

    kind: what the file holds, such as "tree"; `load_arrays` refuses files of another kind
    """
    text = json.dumps({"kind": kind, **description}, ensure_ascii=False)
    encoded = np.frombuffer(text.encode(), np.uint8)
    path = file_path(path)
    with _replacing(path) as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: encoded}, **arrays)
    return path


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the JSON description of a file that `save_arrays` wrote for the same kind."""
    path = _existing(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {info.filename.removesuffix(".npy"): _read_entry(archive, info) for info in archive.infolist()}
        description = _writable_again(parse_json(arrays.pop(DESCRIPTION).tobytes()))
        found = description["kind"]
    except (InputError, *_DAMAGE):
        raise _not_ours(path, kind) from None
    _check_kind(path, found, kind)
    return arrays, description


def load_npy(path: str | Path) -> Array:
    """Return the array of an .npy file; object arrays are refused, because they would run code."""
    path = _existing(path)
    try:
        with path.open("rb") as file:
            return _read_npy(file, path.stat().st_size)
    except (InputError, *_DAMAGE):
        raise InputError(f"{path}: is incomplete, damaged or not an array saved by NumPy") from None


def save_json(path: str | Path, kind: str, plain: Mapping[str, Any]) -> Path:
    """Write a JSON file, for results of a few numbers that other programs read too; NaN becomes null."""
    text = json.dumps({"kind": kind, **plain_value(plain)}, ensure_ascii=False, indent=1, allow_nan=False)
    path = file_path(path)
    with _replacing(path) as file:
        file.write(text.encode())
    return path


def load_json(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the content of a file that `save_json` wrote for the same kind."""
    path = _existing(path)
    try:
        plain = _writable_again(parse_json(path.read_bytes()))
        found = plain.pop("kind")
    except _DAMAGE:
        raise _not_ours(path, kind) from None
    _check_kind(path, found, kind)
    return plain


def saved_kind(path: str | Path) -> str | None:
    """Return what kind of result a .npz or .json file holds, or None if attngeo did not write it."""
    path = _existing(path)
    try:
        if path.suffix == ".json":
            found = parse_json(path.read_bytes())["kind"]
        else:
            with zipfile.ZipFile(path) as archive:
                about = _read_entry(archive, archive.getinfo(f"{DESCRIPTION}.npy"))
            found = parse_json(about.tobytes())["kind"]
    except (InputError, *_DAMAGE):
        return None
    return found if isinstance(found, str) else None


def required_array(arrays: Mapping[str, Array], name: str) -> Array:
    """Return the array `name`, or raise InputError if the file has none."""
    if name not in arrays:
        raise InputError(f"the array {name} is missing")
    return arrays[name]


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Turn any error about the content of a file into an InputError that begins with the path of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except _DAMAGE:
        raise InputError(f"{path}: has unexpected content, expected a file as attngeo wrote it") from None


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """Return one array of an .npz file, after its sizes were checked against the size of the file."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{info.filename} is compressed by method {info.compress_type}, expected stored or deflated")
    most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else _DEFLATE)
    if info.file_size > most:
        raise InputError(f"{info.filename} claims {info.file_size} bytes, but at most {most} are stored")
    with archive.open(info) as file:
        return _read_npy(file, info.file_size)


def _read_npy(file: IO[bytes], size: int) -> Array:
    """Return the array in an .npy file of `size` bytes; its header must agree with that size."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise InputError(f"NumPy format version {version}, expected 1.0 or 2.0")
    shape, fortran_order, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.itemsize == 0 or any(n < 0 for n in shape):
        raise InputError(f"an array of {dtype} and shape {shape}, expected numbers")
    length = math.prod(shape) * dtype.itemsize  # bytes
    if length > size:
        raise InputError(f"an array of {dtype} and shape {shape} needs {length} bytes, the file has {size}")
    data = np.empty(length, np.uint8)
    for start in range(0, length, _CHUNK):
        part = data[start : start + _CHUNK]
        part[:] = np.frombuffer(file.read(part.size), np.uint8)  # of another size where the file ends: ValueError
    file.read(1)  # the checksum of a zip entry is compared at its end
    array = data.view(dtype)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)


def _writable_again(plain: Any) -> dict[str, Any]:
    """Return a JSON object, or raise ValueError if it holds half of a surrogate pair, which UTF-8 cannot express."""
    json.dumps(plain, ensure_ascii=False).encode()
    return dict(plain)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    check_writable(path)
    with write_errors(path), atomic_file(path) as file:
        yield file


def _existing(path: str | Path) -> Path:
    path = file_path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    if not os.access(path, os.R_OK):  # not damaged, as the readers below would say
        raise InputError(f"{path}: cannot be read (Permission denied)")
    return path


def _not_ours(path: Path, kind: str) -> InputError:
    return InputError(f"{path}: is incomplete, damaged or not a file of attngeo, expected a saved {kind}")


def _check_kind(path: Path, found: object, kind: str) -> None:
    if found != kind:
        raise InputError(f"{path}: holds a saved {found}, expected a saved {kind}")
