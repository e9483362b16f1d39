"""Whatever a file of any kind holds, reading it gives a result or one line of error.

hypothesis damages valid files: bytes anywhere, one value anywhere in their JSON, the values and shapes of their arrays.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attngeo
from attngeo.errors import AttngeoError
from attngeo.io.archive import load_npy
from tests.weights.made_checkpoints import (
    LLAMA_CONFIG,
    Array,
    gguf_bytes,
    llama_like_tensors,
    normal,
    safetensors_bytes,
    with_header,
    write_files,
)

Files = Mapping[str, bytes]
STRANGE = st.sampled_from([0, 3, 0.5, None, True, "", "x" * 400, "../x", [], {}, [1, "a"]])


# ---- damage


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that end early, or some of which are other ones, missing or new; the first ones, of headers, more often."""
    at = draw(st.integers(0, min(400, len(data))) | st.integers(0, len(data)))
    other = draw(st.binary(min_size=1, max_size=8) | st.sampled_from([bytes(8), b"\xff" * 8, b"{", b"\n"]))
    gone = draw(st.integers(1, 20))
    return draw(
        st.sampled_from(
            [data[:at], data[:at] + other + data[at + len(other) :], data[:at] + other + data[at:],
             data[:at] + data[at + gone :]]
        )
    )  # fmt: skip


@st.composite
def damaged_value(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value in which one value, at any depth, is another one, missing, or has another name."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
        return draw(STRANGE)
    copy = dict(value) if isinstance(value, dict) else list(value)
    key = draw(st.sampled_from(list(copy) if isinstance(copy, dict) else range(len(copy))))
    inner = copy.pop(key)
    change = draw(st.sampled_from(["inside", "inside", "inside", "missing", "renamed"]))
    if change == "renamed" and isinstance(copy, dict):
        return {**copy, draw(st.sampled_from(["", "x" * 400, f"{key}0"])): inner}
    if change == "inside":
        inner = draw(damaged_value(inner))
        return {**value, key: inner} if isinstance(copy, dict) else [*value[:key], inner, *value[key + 1 :]]
    return copy


@st.composite
def damaged_array(draw: st.DrawFn, array: Array) -> Array:
    """An array of another shape or type, or with values that are too large, too small or not finite."""
    with np.errstate(all="ignore"):
        others = [array.reshape(-1), array[None], array.T, array[:0] if array.ndim else array, array.astype("i8")]
        others += [(array * factor).astype(array.dtype) for factor in (0, -1, 1e-30, 1e30, np.nan, np.inf)]
    return np.asarray(draw(st.sampled_from(others)))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def damaged_json(draw: st.DrawFn, data: bytes) -> bytes:
    return as_json(draw(damaged_value(json.loads(data))))


@st.composite
def damaged_safetensors(draw: st.DrawFn, data: bytes) -> bytes:
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    if draw(st.booleans()):
        return with_header(as_json(draw(damaged_value(header))), data[end:])
    name = draw(st.sampled_from(list(header)))
    return safetensors_bytes({**llama_tensors(), name: draw(damaged_array(normal(*header[name]["shape"])))})


@st.composite
def damaged_npz(draw: st.DrawFn, data: bytes) -> bytes:
    with np.load(io.BytesIO(data)) as stored:
        arrays = dict(stored)
    name = draw(st.just("about") | st.sampled_from(list(arrays)))
    if name == "about":
        text = as_json(draw(damaged_value(json.loads(arrays[name].tobytes()))))
        arrays[name] = np.frombuffer(text, np.uint8)
    else:
        arrays[name] = draw(damaged_array(arrays[name]))
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


@st.composite
def damaged_zip(draw: st.DrawFn, data: bytes) -> bytes:
    """A zip archive, one entry of which has other bytes and the checksum of those."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(list(entries)))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for each, inner in entries.items():
            archive.writestr(each, draw(damaged_bytes(inner)) if each == name else inner)
    return content.getvalue()


# ---- valid files, and what reads them


@dataclass(frozen=True)
class Kind:
    """A kind of file: valid files, the one to damage and how (other bytes are tried of every kind), and its reader."""

    files: Callable[[], Files]
    name: str
    read: Callable[[Path], object]
    damage: Callable[[bytes], st.SearchStrategy[bytes]] = damaged_bytes


CONFIG = json.dumps({**LLAMA_CONFIG, "num_hidden_layers": 1, "rope_scaling": None, "layer_types": ["x"]}).encode()
Q, K = (f"model.layers.0.self_attn.{side}_proj.weight" for side in "qk")


def llama_tensors() -> dict[str, Array]:
    return {**llama_like_tensors(1, dtype=np.float32), "model.layers.0.input_layernorm.weight": normal(64)}


def safetensors_folder() -> Files:
    return {"config.json": CONFIG, "model.safetensors": safetensors_bytes(llama_tensors())}


def sharded_folder() -> Files:
    index = {"weight_map": dict.fromkeys(llama_tensors(), "a.safetensors")}
    files = {"config.json": CONFIG, "a.safetensors": safetensors_bytes(llama_tensors())}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


def float8_folder() -> Files:
    tensors: dict[str, Array] = {name: normal(64, 64, dtype=ml_dtypes.float8_e4m3fn) for name in (Q, K)}
    tensors |= {f"{name}_scale_inv": np.ones((4, 4), np.float32) for name in (Q, K)}
    config = {**LLAMA_CONFIG, "num_key_value_heads": 4, "quantization_config": {"weight_block_size": [16, 16]}}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_bytes(tensors)}


def gguf_folder() -> Files:
    tensors = {f"blk.0.attn_{side}.weight": normal(64, 64) for side in "qk"}
    metadata = {"attention.head_count": 4, "rope.freq_base": 1e4, "rope.scaling.type": "none", "more": [1, 2]}
    return {"model.gguf": gguf_bytes(metadata, tensors)}


def pickle_folder(*, zipped: bool) -> Files:
    import torch

    content = io.BytesIO()
    state = {name: torch.from_numpy(array) for name, array in llama_tensors().items()}
    torch.save({"state_dict": state, "step": 3}, content, _use_new_zipfile_serialization=zipped)
    return {"config.json": CONFIG, "pytorch_model.bin": content.getvalue()}


def array_file() -> Files:
    content = io.BytesIO()
    np.save(content, normal(8, 7, 5))
    return {"array.npy": content.getvalue()}


@cache
def results() -> dict[str, Any]:
    """Return one small result of each class that is saved."""
    from attngeo.organization import NetworkTensor, organize, paraproduct, planted, softmax_invariance

    values, _ = planted((8, 7, 5), 0)
    mask = np.ones((8, 7), bool)
    mask[0, 1:] = False
    organization = organize(NetworkTensor(values, mask, name="a model"))
    rows, columns = organization.trees[:2]
    return {
        "tensor.npz": NetworkTensor(values, mask, name="a model"),
        "tree.npz": rows,
        "organization.npz": organization,
        "expansion.npz": organization.expand(),
        "paraproduct.npz": paraproduct(values[:, :, 0], rows, columns, "softmax"),
        "comparison.json": organization.expand().compare(),
        "report.json": softmax_invariance(values, bootstrap=40),
        "scores.parquet": attngeo.score(attngeo.bundled("encoder"), nulls=False),
        "models.parquet": attngeo.compare(attngeo.bundled("encoder"), attngeo.bundled("decoder")),
    }


@cache
def result_file(name: str) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {name: results()[name].save(Path(folder) / name).read_bytes()}


def read_result(name: str, folder: Path) -> None:
    """Load a result, which then prints and saves itself."""
    loaded = type(results()[name]).load(folder / name)
    repr(loaded)
    with tempfile.TemporaryDirectory() as other:
        assert type(loaded).load(loaded.save(Path(other) / name)) == loaded


def read_model(folder: Path) -> None:
    table = attngeo.score(folder, nulls=False)
    assert len(table) > 0 and repr(table)


ENDINGS = {".npz": damaged_npz, ".json": damaged_json, ".parquet": damaged_bytes}
RESULTS = ("tensor.npz", "tree.npz", "organization.npz", "expansion.npz", "paraproduct.npz", "comparison.json",
           "report.json", "scores.parquet", "models.parquet")  # fmt: skip
KINDS = {
    "safetensors": Kind(safetensors_folder, "model.safetensors", read_model, damaged_safetensors),
    "config": Kind(safetensors_folder, "config.json", read_model, damaged_json),
    "index": Kind(sharded_folder, "model.safetensors.index.json", read_model, damaged_json),
    "FP8 weights": Kind(float8_folder, "model.safetensors", read_model),
    "FP8 config": Kind(float8_folder, "config.json", read_model, damaged_json),
    "GGUF": Kind(gguf_folder, "model.gguf", read_model),
    "pickle": Kind(cache(partial(pickle_folder, zipped=True)), "pytorch_model.bin", read_model, damaged_zip),
    "old pickle": Kind(cache(partial(pickle_folder, zipped=False)), "pytorch_model.bin", read_model),
    "array": Kind(array_file, "array.npy", lambda folder: load_npy(folder / "array.npy")),
    **{
        name: Kind(partial(result_file, name), name, partial(read_result, name), ENDINGS[Path(name).suffix])
        for name in RESULTS
    },
}


def check(kind: Kind, files: Files) -> None:
    """Read files, of which nothing is expected but a result or one line."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind.read(write_files(Path(folder), files))
        except AttngeoError as error:
            assert str(error).isprintable() and 0 < len(str(error)) <= 300


def check_damaged(kind: Kind, data: st.DataObject) -> None:
    files = kind.files()
    damage = data.draw(st.sampled_from([kind.damage, kind.damage, damaged_bytes]))
    check(kind, {**files, kind.name: data.draw(damage(files[kind.name]))})


few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=400, derandomize=False)


@pytest.mark.parametrize("name", KINDS)
@few
@given(data=st.data())
def test_a_damaged_file_gives_a_result_or_one_line(name: str, data: st.DataObject) -> None:
    check_damaged(KINDS[name], data)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@many
@given(data=st.data())
def test_hundreds_of_damaged_files_of_each_kind_give_a_result_or_one_line(name: str, data: st.DataObject) -> None:
    check_damaged(KINDS[name], data)


@pytest.mark.parametrize("name", KINDS)
def test_the_files_that_are_damaged_above_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    KINDS[name].read(write_files(tmp_path, KINDS[name].files()))
