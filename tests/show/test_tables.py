"""Frames as text and files: what is printed can be read back, pasted, and is never half written."""

from __future__ import annotations

import io
import json
import os

import polars as pl
import pytest

from attngeo.errors import AttngeoError
from attngeo.io.atomic import check_writable, write_file
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


def test_json_refuses_what_is_not_json():
    with pytest.raises(ValueError, match="JSON"):
        tables.as_json(pl.DataFrame({"symmetry": [float("nan")]}))


def test_csv_and_parquet_read_back():
    assert pl.read_csv(tables.as_csv(FRAME).encode(), schema=FRAME.schema).equals(FRAME)
    assert pl.read_parquet(io.BytesIO(tables.encode(FRAME, "parquet"))).equals(FRAME)


def test_text_is_aligned_and_leaves_empty_columns_out():
    assert tables.as_text(FRAME).splitlines() == [
        "model    layer  symmetry  symmetry_z  cross  caution",
        "org/a_b      0     0.123        12.3  no     50% of {x} | y",
        "org/a_b      1         -           -  yes    -",
    ]


def test_markdown_escapes_its_bars():
    lines = tables.as_markdown(FRAME).splitlines()
    assert lines[0] == "| model | layer | symmetry | symmetry_z | cross | caution |"
    assert lines[1] == "| :--- | ---: | ---: | ---: | :--- | :--- |"
    assert lines[2] == r"| org/a_b | 0 | 0.123 | 12.3 | no | 50% of {x} \| y |"


def test_latex_escapes_its_specials():
    lines = tables.as_latex(FRAME).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrll}"
    assert lines[4] == r"org/a\_b & 0 & 0.123 & 12.3 & no & 50\% of \{x\} | y \\"
    assert lines[-1] == r"\end{tabular}"


def test_every_format_is_encoded():
    assert all(tables.encode(FRAME, form) for form in tables.FORMATS)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "scores.csv"
    write_file(path, b"first")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def fail(*_):
        raise OSError("disk gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_known_beforehand(tmp_path):
    check_writable(tmp_path / "new.csv")
    with pytest.raises(AttngeoError, match="does not exist"):
        check_writable(tmp_path / "no" / "new.csv")
    with pytest.raises(AttngeoError, match="is a folder"):
        check_writable(tmp_path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
