"""Dataclasses as plain JSON values and back, with every value checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, parse_json


@dataclass(frozen=True)
class Fit:
    slope: float
    name: str = ""


@dataclass(frozen=True, eq=False)
class Result:
    count: int
    sure: bool
    fits: tuple[Fit, ...]
    shares: dict[float, float]
    values: Floats
    numbers: Ints
    best: Fit | None = None


RESULT = Result(3, True, (Fit(1.5, "a"), Fit(math.nan)), {0.9: 0.1}, np.array([1.0, math.nan]), np.array([1, 2]))


def test_a_dataclass_survives_the_way_through_json() -> None:
    plain = json.loads(json.dumps(as_plain(RESULT), allow_nan=False))
    again = from_plain(Result, plain)
    assert as_plain(again) == as_plain(RESULT)
    assert again.values.dtype == np.float64 and again.numbers.dtype == np.int64
    assert math.isnan(again.fits[1].slope) and again.best is None
    assert from_plain(Result, {**plain, "best": {"slope": 2}}).best == Fit(2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1.5}, "count is 1.5, expected a whole number"),
        ({"count": True}, "count is True, expected a whole number"),
        ({"count": 1 << 63}, "expected a whole number"),
        ({"sure": 1}, "sure is 1, expected true or false"),
        ({"fits": {}}, "fits is {}, expected a list"),
        ({"fits": [3]}, r"fits\[0\] holds 3, expected an object"),
        ({"fits": [{"slope": "x"}]}, r"fits\[0\].slope is 'x', expected a number"),
        ({"fits": [{"slope": 10**400}]}, "expected a finite number"),
        ({"fits": [{"slope": math.inf}]}, "expected a finite number"),
        ({"fits": [{}]}, r"fits\[0\].slope is missing"),
        ({"fits": [{"slope": 1, "name": None}]}, r"fits\[0\].name is None, expected text"),
        ({"shares": {"x": 1}}, "shares has the key 'x', expected a number"),
        ({"shares": [1]}, r"shares is \[1\], expected an object"),
        ({"values": [[1.0]]}, r"values\[0\] is \[1.0\], expected a number"),
        ({"numbers": [None]}, r"numbers\[0\] is None, expected a whole number"),
        ({"other": 1}, "other is unknown, expected best, count"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_plain(Result, as_plain(RESULT) | change)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, '{"a": tru}'])
def test_everything_wrong_with_json_is_a_value_error(data: bytes | str) -> None:
    with pytest.raises(ValueError):
        parse_json(data)
