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


def assert_refused(ref: object, *parts: str) -> str:
    """Check that opening and reading everything fails with one line that contains all `parts`; return the line."""
    with pytest.raises(SourceError) as caught, open_checkpoint(ref) as checkpoint:
        for name in checkpoint.tensors:
            checkpoint.read(ReadRequest(name))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def test_a_missing_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(tmp_path / "nowhere", "no such folder", "nowhere")
    assert_refused(str(tmp_path / "x.safetensors"), "no such file", "x.safetensors")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for ref in ("./nowhere", "../nowhere", "~/nowhere-at-all", "here/a/b", "model.safetensors", "/" + "x" * 500):
        assert_refused(ref, "no such", ref[:100])
    assert_refused("/" + "x" * 5000, "/xxx", "…", "xxx: no such folder")
    assert_refused("", "no such folder")
    assert_refused("two words/and more", "no such folder")


@pytest.mark.parametrize("name", ["x.safetensors", "x.gguf", "x.bin"])
def test_a_pipe_is_an_error_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / name, os.O_RDWR)  # so that opening it does not wait, where it is opened
    try:
        assert_refused(str(tmp_path / name), name, "is neither a folder nor a file")
    finally:
        os.close(writer)


def test_a_reference_of_the_wrong_type_is_an_error() -> None:
    assert_refused(3, "int", "expected")
    assert_refused({}, "empty")
    assert_refused({"w": "text"}, "'w'", "str")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    assert_refused(tmp_path, str(tmp_path), "empty", "expected")


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    assert_refused(write_files(tmp_path, {"config.json": {}}), "no weights", "expected")
    assert_refused(write_files(tmp_path, {"tf_model.h5": b""}), "tf_model.h5", "expected")
    assert_refused(write_files(tmp_path, {"notes.txt": b""}) / "notes.txt", "notes.txt", "expected")


def test_weights_in_a_subfolder_are_pointed_to(tmp_path: Path) -> None:
    write_files(tmp_path / "text_encoder", {"model.safetensors": GOOD})
    assert_refused(tmp_path, "text_encoder", "name that folder")


@pytest.mark.parametrize("keep", [0, 5, 8, 40, len(GOOD) - 1])
def test_a_truncated_file_is_an_error(tmp_path: Path, keep: int) -> None:
    assert_refused(write_files(tmp_path, {"model.safetensors": GOOD[:keep]}), "model.safetensors")


def test_a_truncated_file_is_called_incomplete(tmp_path: Path) -> None:
    assert_refused(write_files(tmp_path, {"model.safetensors": GOOD[:-1]}), "'w'", "24", "23", "incomplete")


INDEX = "model.safetensors.index.json"


def test_a_truncated_shard_is_called_incomplete(tmp_path: Path) -> None:
    weight_map = {"w": "a.safetensors", "v": "b.safetensors"}
    files = {"a.safetensors": GOOD, "b.safetensors": safetensors_bytes({"v": W})[:-4]}
    assert_refused(
        write_files(tmp_path, {**files, INDEX: {"weight_map": weight_map}}), "b.safetensors", "'v'", "incomplete"
    )


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    weight_map = {"w": "a.safetensors", "v": "b.safetensors"}
    assert_refused(
        write_files(tmp_path, {"a.safetensors": GOOD, INDEX: {"weight_map": weight_map}}),
        "b.safetensors",
        "missing",
        INDEX,
    )


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path: Path) -> None:
    weight_map = {"w": "a.safetensors", "v": "a.safetensors"}
    assert_refused(
        write_files(tmp_path, {"a.safetensors": GOOD, INDEX: {"weight_map": weight_map}}),
        "a.safetensors",
        "'v'",
        "index",
    )


def test_a_gap_in_the_numbers_of_shards_is_an_error(tmp_path: Path) -> None:
    files = {f"model-0000{number}-of-00003.safetensors": GOOD for number in (1, 3)}
    assert_refused(write_files(tmp_path, files), "shard 2 of 3")


@pytest.mark.parametrize(
    "shard", ["../a.safetensors", "/etc/passwd", "x/../../a.safetensors", "..\\a", "C:\\a", "", "a\0b"]
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, shard: str) -> None:
    write_files(tmp_path, {"a.safetensors": GOOD})  # where `../` would find it
    folder = write_files(tmp_path / "model", {INDEX: {"weight_map": {"w": shard}}})
    assert_refused(folder, INDEX, "'w'", repr(shard), "expected a file in its own folder")


@pytest.mark.parametrize(
    "index", [b"{", b"[1]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {"w": 3}}', b'{"weight_map": {}}']
)
def test_a_damaged_index_is_an_error(tmp_path: Path, index: bytes) -> None:
    assert_refused(write_files(tmp_path, {"a.safetensors": GOOD, INDEX: index}), INDEX)


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


WRONG_HEADERS = [
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
    ({**entry(), "v": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, "overlaps"),
    (
        {**entry(shape=[1, 3], data_offsets=[0, 12]), "v": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}},
        "gap",
    ),
    (entry(shape=[1, 3], data_offsets=[0, 12]), "12 bytes after"),
    (entry(shape=[1, 3], data_offsets=[12, 24]), "gap"),
    ([1, 2], "expected an object"),
]


@pytest.mark.parametrize(("header", "part"), WRONG_HEADERS, ids=[part for _, part in WRONG_HEADERS])
def test_a_wrong_header_is_an_error(tmp_path: Path, header: object, part: str) -> None:
    data = with_header(json.dumps(header).encode(), W.tobytes())
    assert_refused(write_files(tmp_path, {"model.safetensors": data}), "model.safetensors", part)


def test_a_huge_header_is_refused(tmp_path: Path) -> None:
    for size in (1 << 63, (1 << 64) - 1, 100_000_001):
        data = struct.pack("<Q", size) + GOOD[8:]
        assert_refused(
            write_files(tmp_path, {"model.safetensors": data}), "model.safetensors", f"header of {size} bytes"
        )
    assert_refused(
        write_files(tmp_path, {"model.safetensors": struct.pack("<Q", 9999) + GOOD[8:]}), "the whole file has"
    )


def test_a_header_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    for header in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 1}', b"9" * 5000):
        assert_refused(write_files(tmp_path, {"model.safetensors": with_header(header)}), "model.safetensors", "JSON")


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    assert_refused(write_files(tmp_path, {"model.safetensors": pointer}), "git lfs pull")


NUMBERS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
NONFINITE = [(kind, bad) for kind in NUMBERS for bad in ("nan", "inf", "-inf")
             if not (kind is ml_dtypes.float8_e4m3fn and bad != "nan")]  # fmt: skip  # E4M3 has no infinity


@pytest.mark.parametrize(
    ("kind", "bad"), NONFINITE, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_nan_and_infinity_are_errors_with_their_position(tmp_path: Path, kind: type, bad: str) -> None:
    array = normal(300, 700, dtype=kind)  # more than one chunk
    array[271, 13] = float(bad)
    write_files(tmp_path, {"model.safetensors": safetensors_bytes({"fine": W, "w": array})})
    message = assert_refused(tmp_path, "model.safetensors", "'w'", "expected finite weights")
    assert "[271, 13]" in message
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(SourceError, match=r"\[271, 13\]"):
        checkpoint.read(ReadRequest("w", ((5, 9), (260, 300))))
    with open_checkpoint(tmp_path) as checkpoint:
        assert np.isfinite(checkpoint.read(ReadRequest("w", ((0, 271),)))).all()


def test_a_double_too_large_for_float32_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, {"model.safetensors": safetensors_bytes({"w": np.array([1.0, 1e300])})})
    assert_refused(tmp_path, "'w'", "inf at [1]")


@pytest.mark.parametrize("config", [b"{", b"[]", b"3", b"\xff"])
def test_a_config_that_is_not_an_object_is_an_error(tmp_path: Path, config: bytes) -> None:
    assert_refused(write_files(tmp_path, {"model.safetensors": GOOD, "config.json": config}), "config.json")


def test_a_missing_config_argument_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, {"model.safetensors": GOOD})
    with pytest.raises(SourceError, match=r"nothing\.json: cannot be read"):
        open_checkpoint(tmp_path, config=tmp_path / "nothing.json")


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    assert_refused(
        write_files(tmp_path, {"a.safetensors": GOOD, "b.safetensors": GOOD}), "a.safetensors", "b.safetensors", "'w'"
    )


def test_reading_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    with open_checkpoint(write_files(tmp_path, {"model.safetensors": GOOD})) as checkpoint:
        with pytest.raises(SourceError, match="no tensor 'other'"):
            checkpoint.read(ReadRequest("other"))
        with pytest.raises(SourceError, match="no tensor 'other'"):
            checkpoint.read(ReadRequest("other", ((0, 1),)))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_a_source_error_or_their_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes are flipped, removed or inserted anywhere: SourceError, or the values that the bytes hold."""
    original = safetensors_bytes({"a": normal(4, 3), "b": normal(5, seed=1, dtype=np.float16)})
    broken = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip":
            broken[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del broken[at : at + data.draw(st.integers(1, 9))]
        else:
            broken[at:at] = data.draw(st.binary(min_size=1, max_size=5))
        if not broken:
            return
    file = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    file.write_bytes(broken)
    try:
        with open_checkpoint(file) as checkpoint:
            found = {name: checkpoint.read(ReadRequest(name)) for name in checkpoint.tensors}
    except SourceError as error:
        assert "\n" not in str(error) and "fuzz.safetensors" in str(error)
        return
    # a file that is still well-formed must read as the official reader reads it
    from safetensors.numpy import load

    official = load(bytes(broken))
    assert set(found) == set(official)
    for name, values in found.items():
        np.testing.assert_array_equal(values, official[name].astype(np.float32))
