"""Damaged files that once ended in an exception of another library: each is refused in one line."""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from scipy.io import wavfile

import attngeo
from attngeo.errors import AttngeoError
from attngeo.io.archive import load_npy
from attngeo.organization.inputs import read_sound
from attngeo.training.data.corpus import documents
from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.config import load_config
from experiments.initialisation.runs import read_runs
from tests.fuzz.test_damaged_files import KINDS
from tests.weights.made_checkpoints import LLAMA_CONFIG, Array, normal, safetensors_bytes, with_header, write_files

DEEP = b"[" * 100_000
Q = "model.layers.0.self_attn.q_proj.weight"


def refused(read: Callable[[], object], message: str) -> None:
    with pytest.raises(AttngeoError, match=message) as caught:
        read()
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 300


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\x1b[31mb", "\ud800", "\u202e", "x" * 10_000])
def test_names_in_files_do_not_break_the_line_of_a_message(tmp_path: Path, name: str) -> None:
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    refused(
        lambda: attngeo.score(write_files(tmp_path, {"model.safetensors": with_header(header, bytes(4))})), "expected 8"
    )


@pytest.mark.parametrize("shard", ["x" * 300 + ".safetensors", "a/" * 3000 + "x.safetensors"])
def test_a_shard_name_longer_than_the_file_system_allows(tmp_path: Path, shard: str) -> None:
    write_files(tmp_path, {"model.safetensors.index.json": {"weight_map": {"w": shard}}})
    refused(lambda: attngeo.score(tmp_path), r"is missing, but 'model\.safetensors\.index\.json' lists it")


@pytest.mark.parametrize("shape", [[1 << 61] * 30, [0] * 70, [1 << 61, 1 << 61, 0]])
def test_shapes_that_no_array_can_have(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    write_files(tmp_path, {"model.safetensors": with_header(header)})
    refused(lambda: attngeo.score(tmp_path), "tensor 'w' has shape .* more than an array can have")


F8 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize(
    ("query", "scale", "message"),
    [
        (normal(64, 64, dtype=F8), np.full(1, 3e38, np.float32), "times its FP8 scale is too large for float32"),
        (np.ones((), F8), np.ones((2, 2), np.float32), "q_proj"),
        (np.zeros((0, 64), np.float32), None, "q_proj"),
        (np.zeros((64, 0), np.float32), None, "q_proj"),
        (np.zeros((), np.float32), None, "q_proj"),
    ],
)
def test_projections_of_strange_sizes(tmp_path: Path, query: Array, scale: Array | None, message: str) -> None:
    tensors = {Q: query, Q.replace("q_proj", "k_proj"): normal(32, 64)}
    tensors |= {} if scale is None else {f"{Q}_scale_inv": scale}
    write_files(tmp_path, {"config.json": LLAMA_CONFIG, "model.safetensors": safetensors_bytes(tensors)})
    refused(lambda: attngeo.score(tmp_path, unproven=True), message)


def npy_header(text: str) -> bytes:
    """Return an .npy file with this header and 80 bytes of data."""
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + bytes(80)


@pytest.mark.parametrize(
    "data",
    [
        *(
            npy_header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}")
            for kind, shape in (
                ("<f8", (1 << 40,)),
                ("<f8", (1 << 40, 1 << 40)),
                ("<f8", (-1,)),
                ("|O", (10,)),
                ("|S0", (10,)),
            )
        ),
        npy_header("{'descr': ("),
        KINDS["array"].files()["array.npy"][:-1],
        b"\x93NUMPY\x09\x00",
    ],
)
def test_arrays_whose_header_does_not_fit_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "array.npy").write_bytes(data)
    refused(
        lambda: load_npy(tmp_path / "array.npy"), r"array\.npy: is incomplete, damaged or not an array saved by NumPy"
    )


def test_a_fortran_ordered_array_is_read(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "array.npy", array)
    np.testing.assert_array_equal(load_npy(tmp_path / "array.npy"), array)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("comparison.json", lambda it: it["profiles"][0]["sparsity"]["shares"].clear(), "has shares of"),
        ("comparison.json", lambda it: it["profiles"].pop(0), "has no profile 'trees'"),
        ("report.json", lambda it: it["network"].pop(), "network has 2 axes"),
        ("report.json", lambda it: it["heads"].pop(), "has 4 heads and 5 in the control"),
        ("report.json", lambda it: it.update(name="\ud800"), "incomplete, damaged or not a file of attngeo"),
    ],
)
def test_saved_results_that_contradict_themselves(
    tmp_path: Path, name: str, change: Callable[[dict[str, object]], object], message: str
) -> None:
    content = json.loads(KINDS[name].files()[name])
    change(content)
    write_files(tmp_path, {name: content})
    refused(lambda: KINDS[name].read(tmp_path), message)


SOUND = io.BytesIO()
wavfile.write(SOUND, 8000, np.zeros(100, np.int16))


@pytest.mark.parametrize(
    ("name", "content", "read", "message"),
    [
        ("sound.wav", SOUND.getvalue().replace(b"data", b"dat1"), read_sound, "not a WAV file"),
        ("sound.wav", SOUND.getvalue().replace(b"fmt ", b"fmt1"), read_sound, "not a WAV file"),
        ("sound.wav", SOUND.getvalue()[:38], read_sound, "not a WAV file"),
        ("run.toml", b"seed = " + b"9" * 5000, load_config, "not TOML"),
        ("corpus.jsonl", DEEP, lambda path: list(documents([str(path)])), "line 1 is not JSON"),
        *(
            ("runs.jsonl.xz", lzma.compress(line), lambda path: read_runs([path.parent]), "not a file of finished runs")
            for line in (b'{"cell": 3}', b'{"cell": {}, "facts": "x", "records": []}', DEEP, b"[]")
        ),
        *(
            ("attngeo.jsonl", json.dumps({"step": 1, "stack": ["decoder"], "layer": [0]} | change).encode(),
             read_records, "line 1.* is not a")
            for change in ({"symmetry": 0.5}, {"stack": []}, {"step": -1})
        ),
    ],
)  # fmt: skip
def test_other_files(tmp_path: Path, name: str, content: bytes, read: Callable[[Path], object], message: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(lambda: read(tmp_path / name), message)
