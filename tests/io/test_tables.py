"""Parquet files carry a digest of their data."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from attngeo.io.tables import parquet_bytes, read_parquet

FRAME = pl.DataFrame({"name": ["a", "b", None], "value": [1.5, None, -2.0]})


def test_frame_and_metadata_survive(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet_bytes(FRAME, {"notes": "[]"}))
    frame, metadata = read_parquet(path)
    assert frame.equals(FRAME) and metadata["notes"] == "[]"
    assert pl.read_parquet(path).equals(FRAME)  # any Parquet reader can read it


def test_damaged_data_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    whole = parquet_bytes(FRAME, {})
    monkeypatch.setattr(pl, "read_parquet", lambda _: pytest.fail("the damaged data was decoded"))
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(4, end, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="the digest of the data is wrong"):
            read_parquet(path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.parquet").write_bytes(b"words that are no table")
    with pytest.raises(ValueError, match="not a Parquet file, or a damaged one"):
        read_parquet(tmp_path / "table.parquet")
