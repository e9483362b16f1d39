"""Damaged files that once ended in an exception of another library: each is refused in one line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

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
from tests.fuzz.test_damaged_files import KINDS
from tests.weights.made_checkpoints import with_header, write_files


def refused(read: Callable[[], object], message: str) -> None:
    with pytest.raises(AttngeoError, match=message) as caught:
        read()
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 300


@pytest.mark.parametrize("name", ["a\nb", "x" * 10_000])
def test_names_in_files_do_not_break_the_line_of_a_message(tmp_path: Path, name: str) -> None:
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    refused(
        lambda: attngeo.score(write_files(tmp_path, {"model.safetensors": with_header(header, bytes(4))})), "expected 8"
    )


def npy_header(text: str) -> bytes:
    """Return an .npy file with this header and 80 bytes of data."""
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + bytes(80)


@pytest.mark.parametrize(
    "data",
    [
        npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}"),  # more than memory holds
        npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (10,)}"),  # its pickle could run code
        KINDS["array"].files()["array.npy"][:-1],
    ],
)
def test_arrays_whose_header_does_not_fit_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "array.npy").write_bytes(data)
    refused(
        lambda: load_npy(tmp_path / "array.npy"), r"array\.npy: is incomplete, damaged or not an array saved by NumPy"
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("comparison.json", lambda it: it["profiles"][0]["sparsity"]["shares"].clear(), "has shares of"),
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
        ("sound.wav", SOUND.getvalue()[:38], read_sound, "not a WAV file"),
        ("run.toml", b"seed = ", load_config, "not TOML"),
        ("corpus.jsonl", b"[", lambda path: list(documents([str(path)])), "line 1 is not JSON"),
        ("attngeo.jsonl", b'{"step": 1, "stack": ["decoder"], "layer": [0], "symmetry": 0.5}', read_records,
         "line 1.* is not a"),
    ],
)  # fmt: skip
def test_other_files(tmp_path: Path, name: str, content: bytes, read: Callable[[Path], object], message: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(lambda: read(tmp_path / name), message)
