"""Save each result to one file: named arrays and a JSON description (.npz), or JSON alone.

Files are written atomically. What a file holds is never trusted: sizes are checked before memory is allocated for them,
values against the types of their fields, and everything that a damaged file could get wrong is an InputError with the
name of the file. Each file also states what made it: the version of attngeo and of what it ran on, the command or the
options of the call. Loading ignores that.

    save_arrays, load_arrays   arrays and a description
    save_json, load_json       a description alone
    saved_kind                 what kind of result a file holds
    states_options             lets the results of a function state the options of their call in their files
    load_npy                   an array of NumPy's
    as_plain, from_plain       a dataclass as plain JSON values and back
    parse_json, digest         a JSON parser with one kind of error, and a hash of plain values
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import file_path, finite_number
from attngeo.errors import InputError
from attngeo.io.files import atomic_file, check_writable, write_errors
from attngeo.version import command_line, versions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Array = NDArray[Any]
T = TypeVar("T")
P = ParamSpec("P")

DESCRIPTION = "about"  # name of the array that holds the JSON description, as UTF-8 bytes
MADE_WITH = "made_with"  # key of the versions, the command and the options
_OPTIONS = "_options"  # of the call, as an attribute of its result that is no field
_LONGEST = 200  # characters of an option: longer texts are inputs


# ---- files


def save_arrays(
    path: str | Path, kind: str, arrays: Mapping[str, Any], description: Mapping[str, Any], *, of: object = None
) -> Path:
    """Write arrays and a JSON description to an .npz file, and return its path.

    kind: what the file holds, such as "tree"; `load_arrays` refuses files of another kind
    of:   the result, where a function with `states_options` returned it
    """
    text = json.dumps({"kind": kind, MADE_WITH: _made_with(of), **description}, ensure_ascii=False)
    encoded = np.frombuffer(text.encode(), np.uint8)
    path = file_path(path)
    with _replacing(path) as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: encoded}, **arrays)
    return path


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the JSON description of a file that `save_arrays` wrote for the same kind."""
    path = _existing(path)
    with _reading(path, f"a file of attngeo, expected a saved {kind}"):
        with zipfile.ZipFile(path) as archive:
            arrays = {info.filename.removesuffix(".npy"): _read_entry(archive, info) for info in archive.infolist()}
        description = _described(arrays.pop(DESCRIPTION).tobytes())
        description.pop(MADE_WITH, None)
    _check_kind(path, description["kind"], kind)
    return arrays, description


def load_npy(path: str | Path) -> Array:
    """Return the array of an .npy file; object arrays are refused, because they would run code."""
    path = _existing(path)
    with _reading(path, "an array saved by NumPy"), path.open("rb") as file:
        return _read_npy(file, path.stat().st_size)


def save_json(path: str | Path, kind: str, plain: Mapping[str, Any], *, of: object = None) -> Path:
    """Write a JSON file, for results of a few numbers that other programs read too; NaN becomes null.

    kind, of: as in `save_arrays`
    """
    described = {"kind": kind, MADE_WITH: _made_with(of), **plain_value(plain)}
    text = json.dumps(described, ensure_ascii=False, indent=1, allow_nan=False)
    path = file_path(path)
    with _replacing(path) as file:
        file.write(text.encode())
    return path


def load_json(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the content of a file that `save_json` wrote for the same kind."""
    path = _existing(path)
    with _reading(path, f"a file of attngeo, expected a saved {kind}"):
        plain = _described(path.read_bytes())
    _check_kind(path, plain.pop("kind"), kind)
    plain.pop(MADE_WITH, None)
    return plain


def states_options(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function`, whose results state the options of their call in the files that `save` writes."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        result = function(*arguments, **options)
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        plain = {name: value for name, value in given.arguments.items() if name != "progress" and _is_option(value)}
        object.__setattr__(result, _OPTIONS, {"function": function.__qualname__, **plain_value(plain)})
        return result

    return call


def _is_option(value: object) -> bool:
    """Return whether an argument is a plain value, or a few of them; models, arrays and long texts are not."""
    if isinstance(value, list | tuple):
        return len(value) <= _LONGEST and all(map(_is_option, value))
    return value is None or type(value) in (bool, int, float) or (isinstance(value, str) and len(value) <= _LONGEST)


def _made_with(result: object) -> dict[str, Any]:
    command, options = command_line(), getattr(result, _OPTIONS, None)
    return versions() | ({"command": command} if command else {}) | ({"options": options} if options else {})


def saved_kind(path: str | Path) -> str | None:
    """Return what kind of result a .npz or .json file holds, or None if attngeo did not write it."""
    path = _existing(path)
    try:
        if path.suffix == ".json":
            found = _described(path.read_bytes())["kind"]
        else:
            with zipfile.ZipFile(path) as archive:
                about = _read_entry(archive, archive.getinfo(f"{DESCRIPTION}.npy"))
            found = _described(about.tobytes())["kind"]
    except Exception:  # of any kind: the file is damaged, or of another program
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
    except Exception:  # what the readers, and code that uses what they return, raise for a damaged file
        raise InputError(f"{path}: has unexpected content, expected a file as attngeo wrote it") from None


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """Return one array of an .npz file, which stores its arrays uncompressed."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise InputError(f"{info.filename} is compressed, expected stored bytes")
    with archive.open(info) as file:
        array = _read_npy(file, info.file_size)
        file.read(1)  # the checksum of a zip entry is compared at its end
        return array


def _read_npy(file: IO[bytes], size: int) -> Array:
    """Return the array in an .npy file of `size` bytes, if the shape in its header needs no more than the file has."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if math.prod(shape) * dtype.itemsize > size or dtype.itemsize == 0:
        raise InputError(f"an array of {dtype} and shape {shape} does not fit into {size} bytes")
    file.seek(0)
    array: Array = np.load(file, allow_pickle=False)
    return array


def _described(data: bytes) -> dict[str, Any]:
    """Return a JSON object with a kind; ValueError also for half of a surrogate pair, which UTF-8 cannot express."""
    plain = parse_json(data)
    json.dumps(plain, ensure_ascii=False).encode()
    if not isinstance(plain, dict) or "kind" not in plain:
        raise ValueError("no JSON object with a kind")
    return plain


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a reader into an InputError that says what the file is not."""
    try:
        yield
    except Exception:  # of any kind, from the readers of zip, NumPy and JSON
        raise InputError(f"{path}: is incomplete, damaged or not {what}") from None


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


def _check_kind(path: Path, found: object, kind: str) -> None:
    if found != kind:
        raise InputError(f"{path}: holds a saved {found}, expected a saved {kind}")


# ---- plain values


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON document in UTF-8; everything wrong with it is a ValueError."""
    try:
        return json.loads(data.decode("utf-8") if isinstance(data, bytes) else data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def digest(*values: Any) -> str:
    """Return a hash of plain values: 40 hexadecimal digits.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a1")
    (True, False)
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:40]


def as_plain(result: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as dictionaries, lists, numbers and strings; NaN becomes None.

    Two results with the same plain values are equal, also where both hold NaN.
    """
    return cast("dict[str, Any]", plain_value(asdict(result)))


def plain_value(value: Any) -> Any:
    """Return `value` in the types that JSON has; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain_value(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain_value(inner) for inner in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(kind: type[T], plain: object) -> T:
    """Return the dataclass of type `kind` of which `as_plain` gives `plain`, with None as NaN.

    >>> from dataclasses import make_dataclass
    >>> Line = make_dataclass("Line", [("slope", float), ("error", float)])
    >>> from_plain(Line, {"slope": 1, "error": None})
    Line(slope=1.0, error=nan)
    >>> from_plain(Line, {"slope": "steep", "error": None})
    Traceback (most recent call last):
    attngeo.errors.InputError: slope is 'steep', expected a number
    """
    return cast(T, _typed(kind, plain, ""))


def _typed(kind: Any, plain: Any, name: str) -> Any:
    """Return `plain` as a value of the type `kind`: a dataclass, a container of types, or a plain type.

    name: of the value within the file, for error messages
    """
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, plain, name)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # X | None
        (inner,) = (choice for choice in arguments if choice is not NoneType)
        return None if plain is None else _typed(inner, plain, name)
    if origin is tuple and isinstance(plain, list):
        return tuple(_typed(arguments[0], item, f"{name}[{at}]") for at, item in enumerate(plain))
    if origin is dict and isinstance(plain, Mapping):
        key_type, value_type = arguments
        return {_key(key_type, key, name): _typed(value_type, item, f"{name}[{key!r}]") for key, item in plain.items()}
    if origin is np.ndarray and isinstance(plain, list):
        dtype = np.dtype(get_args(arguments[1])[0])
        item_type = float if dtype.kind == "f" else int
        return np.asarray([_typed(item_type, item, f"{name}[{at}]") for at, item in enumerate(plain)], dtype)
    if kind is float and (plain is None or type(plain) in (int, float)):
        return math.nan if plain is None else finite_number(plain, name)
    if kind is int and type(plain) is int and abs(plain) < 1 << 63:
        return plain
    if kind in (str, bool) and type(plain) is kind:
        return plain
    expected = {float: "a number", int: "a whole number", str: "text", bool: "true or false", dict: "an object"}
    raise InputError(f"{name} is {plain!r}, expected {expected.get(origin or kind, 'a list')}")


def _dataclass(kind: Any, plain: Any, name: str) -> Any:
    if not isinstance(plain, Mapping):
        raise InputError(f"{name or 'the file'} holds {plain!r}, expected an object")
    hints = get_type_hints(kind)
    prefix = f"{name}." if name else ""
    for field in fields(kind):
        if field.name not in plain and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{prefix}{field.name} is missing")
    known = {field.name for field in fields(kind)}
    for key in plain:
        if key not in known:
            raise InputError(f"{prefix}{key} is unknown, expected {', '.join(sorted(known))}")
    return kind(**{key: _typed(hints[key], value, f"{prefix}{key}") for key, value in plain.items()})


def _key(kind: Any, key: str, name: str) -> Any:
    try:
        return kind(key)
    except ValueError:
        raise InputError(f"{name} has the key {key!r}, expected a number") from None
