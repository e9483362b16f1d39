"""Damaged safetensors folders give one line each, which names the file, the tensor and what was expected."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import normal, safetensors_bytes, with_header, write_files

W = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = safetensors_bytes({"w": W})
INDEX = "model.safetensors.index.json"


def assert_refused(ref: object, *parts: str) -> None:
    """Check that opening and reading everything fails with one line that contains all `parts`."""
    with pytest.raises(SourceError) as caught, open_checkpoint(ref) as checkpoint:  # type: ignore[arg-type]
        for name in checkpoint.tensors:
            checkpoint.read(ReadRequest(name))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_references_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert_refused(str(tmp_path / "x.safetensors"), "no such file", "x.safetensors")
    for ref in ("./nowhere", "~/nowhere-at-all", "here/a/b", "model.safetensors"):
        assert_refused(ref, "no such", ref)
    for ref in ("", "two words/and more", tmp_path / "nowhere"):
        assert_refused(ref, "no such folder")
    for wrong, says in (({}, "empty"), ({"w": "text"}, "'w' is a str")):
        assert_refused(wrong, says, "expected")


def indexed(index: object = None, **files: bytes) -> dict[str, Any]:
    """Return shards a, b, … and an index; by default one that says that a holds `w` and b holds `v`."""
    shards = {f"{name}.safetensors": data for name, data in files.items()}
    both = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    return {**shards, INDEX: index if isinstance(index, bytes) else json.dumps(index or both).encode()}


def model(data: bytes) -> dict[str, Any]:
    return {"model.safetensors": data}


FOLDERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("is empty", "expected")),
    ({"config.json": {}}, ("no weights", "expected")),
    ({"tf_model.h5": b""}, ("tf_model.h5", "expected")),
    *((model(GOOD[:keep]), ("model.safetensors",)) for keep in (0, 40)),
    (model(GOOD[:-1]), ("'w'", "24", "23", "incomplete")),
    (indexed(a=GOOD, b=safetensors_bytes({"v": W})[:-4]), ("b.safetensors", "'v'", "incomplete")),
    (indexed(a=GOOD), ("b.safetensors", "missing", INDEX)),
    (indexed({"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}}, a=GOOD), ("a.safetensors", "'v'", "index")),
    ({f"model-0000{number}-of-00003.safetensors": GOOD for number in (1, 3)}, ("shard 2 of 3",)),
    ({"a.safetensors": GOOD, "b.safetensors": GOOD}, ("a.safetensors", "b.safetensors", "'w'")),
    *((indexed(index, a=GOOD), (INDEX,)) for index in (b"{", b"{}")),
    (indexed({"weight_map": {"w": "../../a.safetensors"}}, a=GOOD), ("is missing, but", INDEX)),
    (model(struct.pack("<Q", 9999) + GOOD[8:]), ("the whole file has",)),
    (model(with_header(b"{")), ("the safetensors header", "JSON")),
    (model(with_header(b'{"w": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}', b"1234")), ("'w'", "'F33'")),
    (
        model(with_header(b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', b"1234")),
        ("'w'", "expected 8"),
    ),
    (model(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"), ("git lfs pull",)),
    (model(safetensors_bytes({"w": np.array([1.0, 1e300])})), ("'w'", "inf at [1]")),  # too large for float32
    *(({**model(GOOD), "config.json": config}, ("config.json",)) for config in (b"{", b"[]")),
]


@pytest.mark.parametrize(("files", "parts"), FOLDERS, ids=[f"{i} {parts[-1]}" for i, (_, parts) in enumerate(FOLDERS)])
def test_a_damaged_folder_gives_one_line(tmp_path: Path, files: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert_refused(write_files(tmp_path, files), str(tmp_path), *parts)


def test_weights_in_a_subfolder_are_pointed_to_and_other_files_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "text_encoder", {"model.safetensors": GOOD, "notes.txt": b""})
    assert_refused(tmp_path, "text_encoder", "name that folder")
    assert_refused(tmp_path / "text_encoder" / "notes.txt", "notes.txt", "expected")


NUMBERS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
NONFINITE = [(kind, bad) for kind in NUMBERS for bad in ("nan", "inf", "-inf")
             if not (kind is ml_dtypes.float8_e4m3fn and bad != "nan")]  # fmt: skip  # E4M3 has no infinity


@pytest.mark.parametrize(("kind", "bad"), NONFINITE)
def test_nan_and_infinity_are_errors_with_their_position(tmp_path: Path, kind: type, bad: str) -> None:
    array = normal(300, 700, dtype=kind)  # more than one chunk
    array[271, 13] = float(bad)
    write_files(tmp_path, model(safetensors_bytes({"fine": W, "w": array})))
    assert_refused(tmp_path, "model.safetensors", "'w'", "expected finite weights", "[271, 13]")
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(SourceError, match=r"\[271, 13\]"):
            checkpoint.read(ReadRequest("w", ((5, 9), (260, 300))))
        assert np.isfinite(checkpoint.read(ReadRequest("w", ((0, 271),)))).all()


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, model(GOOD))
    with pytest.raises(SourceError, match=r"nothing\.json: cannot be read"):
        open_checkpoint(tmp_path, config=tmp_path / "nothing.json")
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(SourceError, match="no tensor 'other'"):
        checkpoint.read(ReadRequest("other"))
