"""Arguments that many public functions take, checked: whole numbers, finite numbers, paths."""

from __future__ import annotations

import math
import operator
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from attngeo.errors import InputError

LARGEST_SEED = 2**32 - 1  # torch's CPU generator uses 32 bits: a larger seed would draw the numbers of another


def whole_number(value: Any, name: str, lowest: int | None = 0, highest: int | None = None) -> int:
    """Return `value` as an int; raise InputError unless it is a whole number from `lowest` to `highest`.

    Integers of NumPy and torch count. Booleans do not.

    name: of the argument, for the message

    >>> whole_number(3, "draws")
    3
    >>> whole_number(-1, "seed")
    Traceback (most recent call last):
    attngeo.errors.InputError: seed is -1, expected a whole number from 0 on
    """
    if not is_whole(value, lowest, highest):
        above = "" if lowest is None else f" from {lowest} on" if highest is None else f" from {lowest} to {highest}"
        raise InputError(f"{name} is {value!r}, expected a whole number{above}")
    return operator.index(value)


def is_whole(value: Any, lowest: int | None = None, highest: int | None = None) -> TypeGuard[int]:
    """Tell whether `value` is a whole number from `lowest` to `highest`, as `whole_number` understands it.

    >>> is_whole(3, 0, 4), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    try:
        number = operator.index(value)
    except TypeError:
        return False
    if isinstance(value, bool):
        return False
    return (lowest is None or number >= lowest) and (highest is None or number <= highest)


def finite_number(value: Any, name: str) -> float:
    """Return `value` as a float; raise InputError unless it is a finite number.

    >>> finite_number(float("nan"), "gamma")
    Traceback (most recent call last):
    attngeo.errors.InputError: gamma is nan, expected a finite number
    """
    if not isinstance(value, str):
        with suppress(TypeError, ValueError, OverflowError):
            if math.isfinite(number := float(value)):
                return number
    raise InputError(f"{name} is {value!r}, expected a finite number")


def whole_numbers(values: Any, name: str, count: int) -> list[int]:
    """Return the numbers of `values` as a list; raise InputError unless each is from 0 to `count` − 1.

    >>> whole_numbers(range(2), "heads", 4)
    [0, 1]
    >>> whole_numbers([True, False], "heads", 4)
    Traceback (most recent call last):
    attngeo.errors.InputError: heads: True, expected whole numbers from 0 to 3
    """
    found = list(values)
    for value in found:
        if not is_whole(value, 0, count - 1):
            raise InputError(f"{name}: {value!r}, expected whole numbers from 0 to {count - 1}")
    return [int(value) for value in found]


def file_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` with the home folder in place of a leading ~, which no shell has replaced.

    >>> file_path("~/plan.json") == Path.home() / "plan.json"
    True
    """
    return Path(os.path.expanduser(path))
