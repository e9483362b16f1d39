"""Defects that the fuzzer found: damaged files that once ended in an exception of another library."""

from __future__ import annotations

import io
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import attngeo
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.archive import load_npy
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.fuzz.containers import npy_bytes
from tests.fuzz.result_kinds import results, saved, score_table
from tests.fuzz.training_kinds import SETTINGS, token_files
from tests.fuzz.weight_kinds import gguf_bytes, gguf_tensors, layouts, llama_with_norms, sharded
from tests.weights.made_checkpoints import LLAMA_CONFIG, normal, safetensors_bytes, with_header, write_files

DEEP = b"[" * 100_000


def one_line(error: BaseException) -> bool:
    return str(error).isprintable() and len(str(error).splitlines()) == 1 and len(str(error)) <= 2000


@pytest.mark.parametrize("shard", ["x" * 300 + ".safetensors", "a/" * 3000 + "x.safetensors"])
def test_a_shard_name_longer_than_the_file_system_allows(tmp_path: Path, shard: str) -> None:
    files = dict(sharded())
    index = json.loads(files["model.safetensors.index.json"])
    index["weight_map"]["model.layers.0.self_attn.q_proj.weight"] = shard
    write_files(tmp_path, {**files, "model.safetensors.index.json": index})
    with pytest.raises(SourceError, match=r"is missing, but 'model\.safetensors\.index\.json' lists it") as caught:
        attngeo.score(tmp_path)
    assert one_line(caught.value)


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\x1b[31mb", "\ud800", "\u202e", "x" * 10_000])
def test_names_from_files_do_not_break_the_line_of_a_message(tmp_path: Path, name: str) -> None:
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    write_files(tmp_path, {"model.safetensors": with_header(header, bytes(4))})
    with pytest.raises(SourceError, match="expected 8") as caught:
        open_checkpoint(tmp_path)
    assert one_line(caught.value)
    index = {"weight_map": {"w": f"{name}.safetensors".replace("\0", "")}}
    write_files(tmp_path / "sharded", {"model.safetensors.index.json": index})
    with pytest.raises(SourceError) as caught:
        open_checkpoint(tmp_path / "sharded")
    assert one_line(caught.value)


def test_shapes_that_no_array_can_have(tmp_path: Path) -> None:
    for shape in ([1 << 61] * 30, [0] * 70, [1 << 61, 1 << 61, 0]):
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        with pytest.raises(SourceError, match=r"tensor 'w' has shape .* more than an array can have"):
            open_checkpoint(write_files(tmp_path, {"model.safetensors": with_header(header)}))
    data = gguf_bytes({"attention.head_count": 4}, gguf_tensors())
    entry = b"token_embd.weight" + struct.pack("<IQQ", 2, 64, 20)
    assert entry in data
    with pytest.raises(SourceError, match=r"'token_embd\.weight' has shape .* more than an array can have"):
        open_checkpoint(write_files(tmp_path / "gguf", {"model.gguf": data.replace(
            entry, b"token_embd.weight" + struct.pack("<IQQ", 2, 0, (1 << 63) - 1))}))  # fmt: skip


def test_fp8_values_that_overflow_with_their_scale_are_an_error(tmp_path: Path) -> None:
    tensors = {"w": normal(4, 4, dtype=ml_dtypes.float8_e4m3fn), "w_scale_inv": np.full(1, 3e38, np.float32)}
    folder = write_files(tmp_path, {"model.safetensors": safetensors_bytes(tensors)})
    too_large = pytest.raises(SourceError, match="'w' times its FP8 scale is too large for float32")
    with open_checkpoint(folder) as checkpoint, too_large:
        checkpoint.read(ReadRequest("w"))


def test_an_fp8_scalar_with_several_scales_is_an_error(tmp_path: Path) -> None:
    tensors = {"w": np.ones((), ml_dtypes.float8_e4m3fn), "w_scale_inv": np.ones((2, 2), np.float32)}
    folder = write_files(tmp_path, {"model.safetensors": safetensors_bytes(tensors)})
    wrong_shape = pytest.raises(SourceError, match=r"'w' of shape \[\] has an FP8 scale of shape \[2, 2\]")
    with open_checkpoint(folder) as checkpoint, wrong_shape:
        checkpoint.read(ReadRequest("w"))


@pytest.mark.parametrize("factor", [1e-45, 1e-38, 1e-30, 1e-23, 1e19, 1e30])
def test_weights_whose_squares_underflow_or_overflow_are_scored(tmp_path: Path, factor: float) -> None:
    tables = []
    for scale in (1.0, factor):
        tensors = {name: (array * scale).astype(np.float32) for name, array in llama_with_norms().items()}
        write_files(tmp_path, {"config.json": LLAMA_CONFIG, "model.safetensors": safetensors_bytes(tensors)})
        tables.append(attngeo.score(tmp_path, nulls=False).frame)
    if factor > 1e-40:  # smaller numbers keep a few bits only
        for name in ("symmetry", "directionality", "symmetry_folded", "symmetry_rope", "dominance", "rank_skew"):
            np.testing.assert_allclose(*(table[name].to_numpy() for table in tables), atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0,), ()])
def test_projections_without_rows_or_columns_are_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors = {**llama_with_norms(), name: np.zeros(shape, np.float32)}
    write_files(tmp_path, {"config.json": LLAMA_CONFIG, "model.safetensors": safetensors_bytes(tensors)})
    with pytest.raises(AttngeoError) as caught:
        attngeo.score(tmp_path, unproven=True)
    assert one_line(caught.value)


@pytest.mark.parametrize("name", ["tensor", "organization"])
def test_descriptions_that_nest_too_deeply(tmp_path: Path, name: str) -> None:
    path = tmp_path / "saved"
    path.write_bytes(saved(name)["saved"])
    with np.load(path) as stored:
        arrays = dict(stored) | {"about": np.frombuffer(DEEP, np.uint8)}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(InputError, match="incomplete, damaged or not a file of attngeo"):
        type(results()[name]).load(path)


def test_json_results_that_nest_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "saved").write_bytes(DEEP)
    with pytest.raises(InputError, match="incomplete, damaged or not a file of attngeo"):
        attngeo.SparsityControls.load(tmp_path / "saved")
    content = io.BytesIO()
    score_table().frame.write_parquet(content, metadata={"attngeo_notes": DEEP.decode()})
    (tmp_path / "scores.parquet").write_bytes(content.getvalue())
    with pytest.raises(SourceError, match="is damaged, expected a score table"):
        attngeo.ScoreTable.load(tmp_path / "scores.parquet")


def test_a_panic_of_polars_is_a_damaged_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl

    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("assertion failed: offset + length <= self.length")

    score_table().save(tmp_path / "scores.parquet")
    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(SourceError, match="is damaged, expected a score table"):
        attngeo.ScoreTable.load(tmp_path / "scores.parquet")


@pytest.mark.parametrize("column", ["model", "stack", "layer"])
def test_a_score_table_without_names_or_layers_is_refused(tmp_path: Path, column: str) -> None:
    import polars as pl

    table = score_table()
    frame = table.frame.with_columns(pl.lit(None).cast(table.frame.schema[column]).alias(column))
    attngeo.ScoreTable(frame, table.notes).save(tmp_path / "scores.parquet")
    with pytest.raises(SourceError, match=f"column {column} contains null"):
        attngeo.ScoreTable.load(tmp_path / "scores.parquet")


def test_a_score_table_without_widths_is_drawn_without_a_null(tmp_path: Path) -> None:
    import polars as pl

    table = score_table()
    frame = table.frame.with_columns(pl.lit(None).cast(pl.Int64).alias("query_width"))
    attngeo.ScoreTable(frame, table.notes).save(tmp_path / "scores.parquet")
    assert len(attngeo.ScoreTable.load(tmp_path / "scores.parquet").plot().axes) == 2


def test_a_result_with_half_a_character_is_damaged(tmp_path: Path) -> None:
    content = json.loads(saved("report")["saved"]) | {"name": "\ud800"}
    (tmp_path / "saved").write_text(json.dumps(content))
    with pytest.raises(InputError, match="incomplete, damaged or not a file of attngeo"):
        attngeo.InvarianceReport.load(tmp_path / "saved")


@pytest.mark.parametrize(
    "change", [{"symmetry": 0.5}, {"layer": [[0], [1]]}, {"stack": ["a"]}, {"symmetry": ["x", 0.1]}, {"step": -1}]
)
def test_records_with_wrong_lists(tmp_path: Path, change: dict[str, object]) -> None:
    from attngeo.training.monitoring.records import read_records

    row = {"step": 1, "stack": ["decoder"] * 2, "layer": [0, 1], "symmetry": [0.1, None]}
    path = tmp_path / "attngeo.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert read_records(path) == [row]
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
    with pytest.raises(SourceError, match=r"attngeo\.jsonl: line 2.* is not a"):
        read_records(path)


def header(text: str) -> bytes:
    """Return an .npy file with this header and 80 bytes of data."""
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + bytes(80)


@pytest.mark.parametrize(
    "data",
    [
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1 << 40,)}"),
        header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({1 << 40}, {1 << 40})}}"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (10,)}"),
        header("{'descr': '|S0', 'fortran_order': False, 'shape': (10,)}"),
        header("{'descr': ("),
        npy_bytes(np.ones(3))[:-1],
        b"\x93NUMPY\x09\x00",
    ],
)
def test_npy_headers_that_do_not_fit_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "array.npy").write_bytes(data)
    with pytest.raises(InputError, match=r"array\.npy: is incomplete, damaged or not an array saved by NumPy"):
        load_npy(tmp_path / "array.npy")


def test_a_fortran_ordered_array_is_read(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "array.npy", array)
    np.testing.assert_array_equal(load_npy(tmp_path / "array.npy"), array)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("comparison", lambda it: it["profiles"][0]["sparsity"].update(l1="1"), "l1 is '1', expected a number"),
        ("comparison", lambda it: it["profiles"][0]["sparsity"].update(l1=10**400), "expected a finite number"),
        ("comparison", lambda it: it["profiles"][0]["sparsity"]["shares"].clear(), "has shares of"),
        ("comparison", lambda it: it["profiles"].pop(0), "has no profile 'trees'"),
        ("comparison", lambda it: it["profiles"][0].update(name=None), r"profiles\[0\].name is None, expected text"),
        ("report", lambda it: it["contrasts"][0].update(value="high"), "value is 'high', expected a number"),
        ("report", lambda it: it["network"].pop(), "network has 2 axes"),
        ("report", lambda it: it["heads"].pop(), "has 4 heads and 5 in the control"),
        ("report", lambda it: it.update(seed=1.5), "seed is 1.5, expected a whole number"),
        ("report", lambda it: it.update(other=1), "other is unknown"),
    ],
)
def test_json_results_with_values_of_a_wrong_type(
    tmp_path: Path, name: str, change: Callable[[dict[str, object]], object], message: str
) -> None:
    content = json.loads(saved(name)["saved"])
    change(content)
    (tmp_path / "saved.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as caught:
        type(results()[name]).load(tmp_path / "saved.json")
    assert str(caught.value).startswith(f"{tmp_path}/saved.json: ")


def test_a_sound_file_with_a_damaged_header(tmp_path: Path) -> None:
    from scipy.io import wavfile

    from attngeo.organization.inputs import read_sound

    path = tmp_path / "sound.wav"
    wavfile.write(path, 8000, np.zeros(100, np.int16))
    whole = path.read_bytes()
    for damaged in (whole.replace(b"data", b"dat1"), whole.replace(b"fmt ", b"fmt1"), whole[:38]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"sound\.wav: not a WAV file"):
            read_sound(path)


def test_a_config_with_a_number_of_5000_digits(tmp_path: Path) -> None:
    from attngeo.training.pretraining.config import load_config

    (tmp_path / "run.toml").write_text(f'out = "run"\nseed = {"9" * 5000}\n')
    with pytest.raises(InputError, match=r"run\.toml: not TOML"):
        load_config(tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokens.json", DEEP),
        ("tokens.json", b'{"vocabulary": []}'),
        ("train.bin", b"\xff"),
        ("tokenizer_config.json", b"3.5"),
        ("tokenizer_config.json", DEEP),
    ],
)
def test_damaged_token_files(tmp_path: Path, name: str, content: bytes) -> None:
    files = dict(token_files())
    if name == "train.bin":  # the right size, but tokens that the tokenizer does not have
        content *= len(files[name])
    write_files(tmp_path / "tokens", {**files, name: content})
    settings = {key: value for key, value in SETTINGS.items() if key != "train"}
    with pytest.raises(AttngeoError) as caught:
        attngeo.pretrain({**settings, "out": f"{tmp_path}/run", "tokens": f"{tmp_path}/tokens", "keep_model": True})
    assert one_line(caught.value)


def test_corpus_lines_that_nest_too_deeply(tmp_path: Path) -> None:
    from attngeo.training.data.corpus import documents

    (tmp_path / "corpus.jsonl").write_bytes(DEEP)
    with pytest.raises(InputError, match=r"corpus\.jsonl: line 1 is not JSON"):
        list(documents([f"{tmp_path}/corpus.jsonl"]))


@pytest.mark.parametrize("line", [b'{"cell": 3}', b'{"cell": {}, "facts": "x", "records": []}', DEEP, b"[]"])
def test_damaged_logs_of_runs(tmp_path: Path, line: bytes) -> None:
    from experiments.initialisation.runs import read_runs

    (tmp_path / "runs.jsonl.xz").write_bytes(lzma.compress(line + b"\n"))
    with pytest.raises(SourceError, match=r"runs\.jsonl\.xz: not a file of finished runs"):
        read_runs([tmp_path])


def test_a_damaged_listing_in_the_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.weights.sources.hub import snapshot
    from attngeo.weights.sources.hub.errors import HubRef

    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path))
    home = snapshot.model_cache(HubRef("org/name"))
    (home / "refs").mkdir(parents=True)
    (home / "abc").mkdir()
    (home / "refs" / "main").write_text("abc")
    for content in (b"{", b'{"a": 3}', b'{"../x": [3, ""]}', b'{"a": ["3", ""]}', DEEP):
        (home / "abc" / "files.json").write_bytes(content)
        assert snapshot._recall(HubRef("org/name")) is None
    (home / "abc" / "files.json").write_bytes(b'{"a": [3, "b"]}')
    assert snapshot._recall(HubRef("org/name")) == snapshot.Snapshot("abc", {"a": (3, "b")})
    (home / "refs" / "main").write_bytes(b"\xff../x")
    assert snapshot._recall(HubRef("org/name")) is None


def test_the_valid_files_that_the_tests_above_damage_are_read(tmp_path: Path) -> None:
    assert len(attngeo.score(write_files(tmp_path / "a", layouts()["llama"]), nulls=False))
    assert len(attngeo.score(write_files(tmp_path / "b", sharded()), nulls=False))
