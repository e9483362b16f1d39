"""Data frames as text: every format has the right content, reads back and escapes its special characters."""

from __future__ import annotations

import io
import json

import polars as pl
import pytest

from attngeo.cli.common import FORMATS
from attngeo.errors import InputError
from attngeo.show import tables

FRAME = pl.DataFrame(
    {
        "model": ["org/a_b", "org/a_b"],
        "layer": [0, 1],
        "head": pl.Series([None, None], dtype=pl.Int64),
        "symmetry": [0.123456789012345, None],
        "symmetry_z": [12.34, None],
        "cross": [False, True],
        "caution": ["50% of {x} | y", None],
    }
)


def test_json_is_an_array_of_rows_with_every_column_and_digit():
    assert json.loads(tables.as_json(FRAME)) == FRAME.to_dicts()
    assert json.loads(tables.as_json(FRAME.clear())) == []


def test_json_rejects_nan():
    with pytest.raises(InputError, match="JSON"):
        tables.as_json(pl.DataFrame({"symmetry": [float("nan")]}))


def test_an_empty_table_has_the_names_of_its_columns():
    assert tables.as_text(FRAME.clear()).split() == FRAME.columns
    assert tables.as_text(pl.DataFrame({"a": [None]})) == "a\n-\n"


def test_csv_and_parquet_read_back():
    assert pl.read_csv(tables.as_csv(FRAME).encode(), schema=FRAME.schema).equals(FRAME)
    assert pl.read_parquet(io.BytesIO(tables.encode(FRAME, "parquet"))).equals(FRAME)


def test_text_is_aligned_and_leaves_empty_columns_out():
    assert tables.as_text(FRAME).splitlines() == [
        "model    layer  symmetry  symmetry_z  cross  caution",
        "org/a_b      0     0.123        12.3  no     50% of {x} | y",
        "org/a_b      1         -           -  yes    -",
    ]


def test_markdown_escapes_bars():
    lines = tables.as_markdown(FRAME).splitlines()
    assert lines[0] == "| model | layer | symmetry | symmetry_z | cross | caution |"
    assert lines[1] == "| :--- | ---: | ---: | ---: | :--- | :--- |"
    assert lines[2] == r"| org/a_b | 0 | 0.123 | 12.3 | no | 50% of {x} \| y |"


def test_latex_escapes_special_characters():
    lines = tables.as_latex(FRAME).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrll}"
    assert lines[4] == r"org/a\_b & 0 & 0.123 & 12.3 & no & 50\% of \{x\} | y \\"
    assert lines[-1] == r"\end{tabular}"


@pytest.mark.parametrize("form", FORMATS.values())
def test_every_format_contains_the_values(form):
    content = tables.encode(FRAME, form)
    if form == "parquet":
        assert pl.read_parquet(io.BytesIO(content)).equals(FRAME)
    else:
        assert b"0.123" in content and (b"org/a_b" in content or rb"org/a\_b" in content)


def test_numbers_have_as_many_decimals_as_they_need():
    for column, value, text in (
        ("symmetry", 0.45678, "0.457"),
        ("symmetry_z", -12.345, "-12.3"),
        ("symmetry_z", 1234.5, "1234"),
        ("model_symmetry_percentile", 45.678, "45.7"),
        ("layer", 3, "3"),
        ("cross", True, "yes"),
        ("symmetry", None, "-"),
    ):
        assert tables.cell(column, value) == text
