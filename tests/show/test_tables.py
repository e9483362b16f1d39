"""Data frames as text: every format has the right content, reads back and escapes its special characters."""

from __future__ import annotations

import io
import json

import polars as pl

from attngeo.show import encode

FRAME = pl.DataFrame(
    {
        "model": ["org/a_b", "org/a_b"],
        "layer": [0, 1],
        "head": pl.Series([None, None], dtype=pl.Int64),
        "symmetry": [0.123456789012345, None],
        "symmetry_z": [12.34, 1234.5],
        "cross": [False, True],
        "caution": ["50% of {x} | y", None],
    }
)


def test_formats_for_programs_have_every_column_and_digit():
    assert json.loads(encode(FRAME, "json")) == FRAME.to_dicts()
    assert json.loads(encode(FRAME.clear(), "json")) == []
    assert pl.read_csv(encode(FRAME, "csv"), schema=FRAME.schema).equals(FRAME)
    assert pl.read_parquet(io.BytesIO(encode(FRAME, "parquet"))).equals(FRAME)


def test_text_is_aligned_and_leaves_empty_columns_out():
    assert encode(FRAME, "table").decode().splitlines() == [
        "model    layer  symmetry  symmetry_z  cross  caution",
        "org/a_b      0     0.123        12.3  no     50% of {x} | y",
        "org/a_b      1         -        1234  yes    -",
    ]
    assert encode(FRAME.clear(), "table").decode().split() == FRAME.columns
    assert encode(pl.DataFrame({"a": [None]}), "table") == b"a\n-\n"


def test_markdown_and_latex_escape_special_characters():
    assert encode(FRAME, "markdown").decode().splitlines()[:3] == [
        "| model | layer | symmetry | symmetry_z | cross | caution |",
        "| :--- | ---: | ---: | ---: | :--- | :--- |",
        r"| org/a_b | 0 | 0.123 | 12.3 | no | 50% of {x} \| y |",
    ]
    lines = encode(FRAME, "latex").decode().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrll}" and lines[-1] == r"\end{tabular}"
    assert lines[4] == r"org/a\_b & 0 & 0.123 & 12.3 & no & 50\% of \{x\} | y \\"
