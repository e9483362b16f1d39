"""Save each result to one file: named arrays and a JSON description (.npz), or JSON alone.

Files are written atomically, and everything that a damaged file gets wrong is an InputError with the name of the file.
Each file also states what made it: versions of attngeo and of what it ran on, the command or the options of the call.
Loading ignores that.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import file_path
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
    encoded = np.frombuffer(json.dumps({"kind": kind, MADE_WITH: _made_with(of), **description}).encode(), np.uint8)
    path = file_path(path)
    with _replacing(path) as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: encoded}, **arrays)
    return path


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the JSON description of a file that `save_arrays` wrote for the same kind."""
    path = _existing(path)
    with _reading(path, f"a file of attngeo, expected a saved {kind}"):
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if stored.zip.testzip() is not None:
                raise ValueError("the checksum of an array is wrong")
            arrays = dict(stored)
        description = parse_json(arrays.pop(DESCRIPTION).tobytes())
        found = description["kind"]
    _check_kind(path, found, kind)
    description.pop(MADE_WITH, None)
    return arrays, description


def load_npy(path: str | Path) -> Array:
    """Return the array of an .npy file; object arrays are refused, because they would run code."""
    path = _existing(path)
    with _reading(path, "an array saved by NumPy"), path.open("rb") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array


def save_json(path: str | Path, kind: str, plain: Mapping[str, Any], *, of: object = None) -> Path:
    """Write a JSON file, for results of a few numbers that other programs read too; NaN becomes null.

    kind, of: as in `save_arrays`
    """
    described = {"kind": kind, MADE_WITH: _made_with(of), **plain_value(plain)}
    text = json.dumps(described, indent=1, allow_nan=False)
    path = file_path(path)
    with _replacing(path) as file:
        file.write(text.encode())
    return path


def load_json(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the content of a file that `save_json` wrote for the same kind."""
    path = _existing(path)
    with _reading(path, f"a file of attngeo, expected a saved {kind}"):
        plain: dict[str, Any] = parse_json(path.read_bytes())
        found = plain.pop("kind")
    _check_kind(path, found, kind)
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
            return str(parse_json(path.read_bytes())["kind"])
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return str(parse_json(stored[DESCRIPTION].tobytes())["kind"])
    except Exception:  # of any kind: the file is damaged, or of another program
        return None


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

    Any exception of Python's says that `plain` is of another type; `naming_file` makes one line of it.

    >>> from dataclasses import make_dataclass
    >>> Line = make_dataclass("Line", [("slope", float), ("error", float)])
    >>> from_plain(Line, {"slope": 1, "error": None})
    Line(slope=1.0, error=nan)
    """
    return cast(T, _typed(kind, plain))


def _typed(kind: Any, plain: Any) -> Any:
    """Return `plain` as a value of the type `kind`: a dataclass, a container of types, or a plain type."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return cast(Any, kind)(**{name: _typed(hints[name], value) for name, value in plain.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # X | None
        (inner,) = (choice for choice in arguments if choice is not NoneType)
        return None if plain is None else _typed(inner, plain)
    if origin is tuple:
        return tuple(_typed(arguments[0], item) for item in plain)
    if origin is dict:
        key_type, value_type = arguments
        return {key_type(key): _typed(value_type, item) for key, item in plain.items()}
    if origin is np.ndarray:
        return np.array(plain, get_args(arguments[1])[0])
    if kind is float:
        return math.nan if plain is None else float(plain)
    if type(plain) is not kind:
        raise TypeError(f"{plain!r} is no {kind.__name__}")
    return plain
