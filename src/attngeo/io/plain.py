"""Dataclasses as plain JSON values and back, a JSON parser with one kind of error, and a hash of such values.

What a file holds is never trusted: `from_plain` checks every value against the type of its field.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from attngeo.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


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
        return math.nan if plain is None else _number(plain, name)
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


def _number(plain: float, name: str) -> float:
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{name} is {plain!r}, expected a finite number")
    return number
