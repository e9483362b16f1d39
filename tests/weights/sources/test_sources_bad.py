"""Damaged safetensors folders give one line each, which names the file, the tensor and what was expected."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    for ref in ("./nowhere", "../nowhere", "~/nowhere-at-all", "here/a/b", "model.safetensors", "/" + "x" * 500):
        assert_refused(ref, "no such", ref[:100])
    assert_refused("/" + "x" * 5000, "/xxx", "…", "xxx: no such folder")
    for ref in ("", "two words/and more", tmp_path / "nowhere"):
        assert_refused(ref, "no such folder")
    for wrong, says in ((3, "int"), ({}, "empty"), ({"w": "text"}, "'w' is a str")):
        assert_refused(wrong, says, "expected")


@pytest.mark.parametrize("name", ["x.safetensors", "x.gguf", "x.bin"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / name, os.O_RDWR)  # so that opening it does not wait, where it is opened
    try:
        assert_refused(str(tmp_path / name), name, "is neither a folder nor a file")
    finally:
        os.close(writer)


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
    *((model(GOOD[:keep]), ("model.safetensors",)) for keep in (0, 5, 8, 40)),
    (model(GOOD[:-1]), ("'w'", "24", "23", "incomplete")),
    (indexed(a=GOOD, b=safetensors_bytes({"v": W})[:-4]), ("b.safetensors", "'v'", "incomplete")),
    (indexed(a=GOOD), ("b.safetensors", "missing", INDEX)),
    (indexed({"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}}, a=GOOD), ("a.safetensors", "'v'", "index")),
    ({f"model-0000{number}-of-00003.safetensors": GOOD for number in (1, 3)}, ("shard 2 of 3",)),
    ({"a.safetensors": GOOD, "b.safetensors": GOOD}, ("a.safetensors", "b.safetensors", "'w'")),
    *(
        (indexed(index, a=GOOD), (INDEX,))
        for index in (b"{", b"[1]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {"w": 3}}', b'{"weight_map": {}}')
    ),
    *(
        (model(struct.pack("<Q", size) + GOOD[8:]), (f"of {size} bytes",))
        for size in (1 << 63, (1 << 64) - 1, 100_000_001)
    ),
    (model(struct.pack("<Q", 9999) + GOOD[8:]), ("the whole file has",)),
    *((model(with_header(header)), ("JSON",)) for header in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 1}')),
    (model(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"), ("git lfs pull",)),
    (model(safetensors_bytes({"w": np.array([1.0, 1e300])})), ("'w'", "inf at [1]")),  # too large for float32
    *(({**model(GOOD), "config.json": config}, ("config.json",)) for config in (b"{", b"[]", b"3", b"\xff")),
]


@pytest.mark.parametrize(("files", "parts"), FOLDERS, ids=[f"{i} {parts[-1]}" for i, (_, parts) in enumerate(FOLDERS)])
def test_a_damaged_folder_gives_one_line(tmp_path: Path, files: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert_refused(write_files(tmp_path, files), str(tmp_path), *parts)


def test_weights_in_a_subfolder_are_pointed_to_and_other_files_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "text_encoder", {"model.safetensors": GOOD, "notes.txt": b""})
    assert_refused(tmp_path, "text_encoder", "name that folder")
    assert_refused(tmp_path / "text_encoder" / "notes.txt", "notes.txt", "expected")


@pytest.mark.parametrize(
    "shard", ["../a.safetensors", "/etc/passwd", "x/../../a.safetensors", "..\\a", "C:\\a", "", "a\0b"]
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, shard: str) -> None:
    write_files(tmp_path, {"a.safetensors": GOOD})  # where `../` would find it
    folder = write_files(tmp_path / "model", indexed({"weight_map": {"w": shard}}))
    assert_refused(folder, INDEX, "'w'", repr(shard), "expected a file in its own folder")


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


def second(start: int) -> dict[str, Any]:
    return {"v": {"dtype": "F32", "shape": [1], "data_offsets": [start, start + 4]}}


WRONG_HEADERS: list[tuple[object, str]] = [
    (entry(data_offsets=[0, 4000]), "'w'"),
    (entry(data_offsets=[24, 0]), "wrong order"),
    (entry(data_offsets=[-24, 0]), "non-negative"),
    (entry(data_offsets=[0, 20]), "expected 24"),
    (entry(data_offsets=[0.0, 24.0]), "integers"),
    (entry(data_offsets=[0]), "data_offsets"),
    (entry(shape=[2, 4]), "expected 32"),
    (entry(shape=[True, 6]), "integers"),
    (entry(shape=[2, 1 << 70]), "integers"),
    (entry(shape="23"), "shape"),
    (entry(dtype="F33"), "'F33'"),
    (entry(dtype=None), "dtype"),
    ({"w": 3}, "'w'"),
    (entry() | second(20), "overlaps"),
    (entry(shape=[1, 3], data_offsets=[0, 12]) | second(20), "gap"),
    (entry(shape=[1, 3], data_offsets=[0, 12]), "12 bytes after"),
    (entry(shape=[1, 3], data_offsets=[12, 24]), "gap"),
    ([1, 2], "expected an object"),
]


@pytest.mark.parametrize(("header", "part"), WRONG_HEADERS, ids=[part for _, part in WRONG_HEADERS])
def test_a_wrong_header_is_an_error(tmp_path: Path, header: object, part: str) -> None:
    data = with_header(json.dumps(header).encode(), W.tobytes())
    assert_refused(write_files(tmp_path, model(data)), "model.safetensors", part)


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
    with open_checkpoint(tmp_path) as checkpoint:
        for rows in (None, ((0, 1),)):
            with pytest.raises(SourceError, match="no tensor 'other'"):
                checkpoint.read(ReadRequest("other", rows))
        with pytest.raises(SourceError, match=r"'w' has shape \[2, 3\], rows 1:3"):
            checkpoint.read(ReadRequest("w", ((1, 3),)))
    with pytest.raises(SourceError, match="was read after it was closed"):
        checkpoint.read(ReadRequest("w"))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_a_source_error_or_the_values_that_the_official_reader_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    from safetensors.numpy import load

    broken = bytearray(safetensors_bytes({"a": normal(4, 3), "b": normal(5, seed=1, dtype=np.float16)}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    file.write_bytes(broken)
    try:
        with open_checkpoint(file) as checkpoint:
            found = {name: checkpoint.read(ReadRequest(name)) for name in checkpoint.tensors}
    except SourceError as error:
        assert "\n" not in str(error) and "fuzz.safetensors" in str(error)
        return
    official = load(bytes(broken))
    assert set(found) == set(official)
    for name, values in found.items():
        np.testing.assert_array_equal(values, official[name].astype(np.float32))
