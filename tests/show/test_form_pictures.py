"""The pictures of docs/scores.md show forms with a high and a low value of each figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.form_pictures import FORMS, ROTATING, main

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images" / "forms"


def test_every_picture_of_the_page_is_drawn(tmp_path):
    main([str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in IMAGES.iterdir()}


@pytest.mark.parametrize("name", FORMS)
def test_the_first_form_has_the_high_value(name):
    value, forms = FORMS[name]
    high, low = map(value, forms.values())
    assert high > low + 1


def test_one_rotating_form_is_symmetric_at_offset_0_alone():
    everywhere, at_zero = ROTATING.values()
    assert (everywhere.symmetry(), everywhere.rope_symmetry()) == pytest.approx((1, 1))
    assert (at_zero.symmetry(), at_zero.rope_symmetry()) == pytest.approx((1, 0), abs=1e-6)
