"""Dataclasses as plain JSON values and back, with every value checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, naming_file


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
    "change",
    [{"count": 1.5}, {"sure": 1}, {"fits": [3]}, {"fits": [{"slope": "x"}]}, {"fits": [{}]}, {"numbers": [None]},
     {"other": 1}],
    ids=str,
)  # fmt: skip
def test_a_file_with_a_value_of_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"^result: has unexpected content"), naming_file("result"):
        from_plain(Result, as_plain(RESULT) | change)
