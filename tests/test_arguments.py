"""Checks of arguments: booleans are no numbers, integers of NumPy and torch are."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.arguments import finite_number, whole_number, whole_numbers
from attngeo.errors import InputError


def test_integers_of_every_library_are_whole_numbers():
    torch = pytest.importorskip("torch")
    for value in (3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)):
        found = whole_number(value, "draws", 3, 3)
        assert found == 3 and type(found) is int
    assert whole_numbers(torch.tensor([0, 2]), "heads", 3) == whole_numbers(np.array([0, 2]), "heads", 3) == [0, 2]


@pytest.mark.parametrize("value", [True, np.True_, 1.0, float("nan"), "1", None, [1], 0, 9])
def test_what_is_no_whole_number_in_the_range_is_named(value):
    with pytest.raises(InputError, match=r"draws is .*, expected a whole number from 1 to 8"):
        whole_number(value, "draws", 1, 8)


def test_a_mask_is_no_list_of_numbers():
    torch = pytest.importorskip("torch")
    for mask in ([False, True], np.array([False, True]), torch.tensor([False, True]), "01", [0.0], 3):
        with pytest.raises(InputError, match=r"heads: .* whole numbers from 0 to 1"):
            whole_numbers(mask, "heads", 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", b"1", None, [1.0, 2.0]])
def test_what_is_no_finite_number_is_named(value):
    assert finite_number(np.float32(0.5), "gamma") == 0.5
    with pytest.raises(InputError, match=r"gamma is .*, expected a finite number"):
        finite_number(value, "gamma")
