"""Local safetensors files: every dtype, rows, shards, FP8 scales, and which file is chosen."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import (
    LLAMA_CONFIG,
    Array,
    llama_like_tensors,
    normal,
    safetensors_bytes,
    write_files,
)

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(7, 5), (11,), (), (400, 333)], ids=str)
def test_every_float_type_and_shape_is_read(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    array = normal(*shape, dtype=dtype)
    write_files(tmp_path, {"model.safetensors": safetensors_bytes({"odd": normal(3, dtype=np.float32), "w": array})})
    with open_checkpoint(tmp_path) as checkpoint:
        values = checkpoint.read(ReadRequest("w"))
    assert values.dtype == np.float32 and values.flags["C_CONTIGUOUS"] and values.flags["OWNDATA"]
    np.testing.assert_array_equal(values, array.astype(np.float32))


def test_every_finite_16_bit_number_is_read_exactly(tmp_path: Path) -> None:
    for dtype in (ml_dtypes.bfloat16, np.float16):
        every = np.arange(65536, dtype=np.uint16).view(dtype)
        finite = every[np.isfinite(every.astype(np.float32))]
        file = write_files(tmp_path, {"w.safetensors": safetensors_bytes({"w": finite})}) / "w.safetensors"
        with open_checkpoint(file) as checkpoint:
            np.testing.assert_array_equal(checkpoint.read(ReadRequest("w")), finite.astype(np.float32))


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair))), max_size=5)


@settings(max_examples=40, deadline=None)
@given(rows=spans, dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]))
def test_rows_are_read_in_the_order_asked_for(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]], dtype: type
) -> None:
    array = normal(40, 7, dtype=dtype)
    file = (
        write_files(tmp_path_factory.mktemp("rows"), {"w.safetensors": safetensors_bytes({"w": array})})
        / "w.safetensors"
    )
    with open_checkpoint(file) as checkpoint:
        values = checkpoint.read(ReadRequest("w", tuple(rows)))
    expected = np.concatenate([array[a:b] for a, b in rows] or [array[:0]]).astype(np.float32)
    np.testing.assert_array_equal(values, expected)


def _shards(tensors: dict[str, Array]) -> tuple[dict[str, bytes], dict[str, str]]:
    names = list(tensors)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    written = {file: safetensors_bytes({n: tensors[n] for n in part}) for file, part in zip(files, parts, strict=True)}
    return written, {name: file for file, part in zip(files, parts, strict=True) for name in part}


@pytest.mark.parametrize("index", [True, False], ids=["indexed", "without index"])
def test_shards_are_read(tmp_path: Path, index: bool) -> None:
    tensors = llama_like_tensors()
    files, weight_map = _shards(tensors)
    write_files(tmp_path, {**files, "config.json": LLAMA_CONFIG})
    if index:
        write_files(tmp_path, {"model.safetensors.index.json": {"metadata": {}, "weight_map": weight_map}})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config == LLAMA_CONFIG
        assert not checkpoint.remote
        assert set(checkpoint.tensors) == set(tensors)
        for name, array in tensors.items():
            assert checkpoint.tensors[name].shape == array.shape
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(name)), array.astype(np.float32))


ONE = safetensors_bytes({"w": np.ones((2, 2), np.float32)})
DIFFUSION = "diffusion_pytorch_model"
TWO = safetensors_bytes({"w": np.full((2, 2), 2, np.float32)})


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": ONE, "pytorch_model.bin": b"not even a pickle"},
        {"model.safetensors": ONE, "consolidated.safetensors": TWO},
        {"model.safetensors": ONE, "model.safetensors.index.json": {"weight_map": {"w": "gone.safetensors"}}},
        {"model.safetensors": ONE, "model.fp16.safetensors": TWO},
        {
            f"{DIFFUSION}.safetensors": ONE,
            f"{DIFFUSION}.fp16.safetensors": TWO,
            f"{DIFFUSION}.non_ema.safetensors": TWO,
            f"{DIFFUSION}.safetensors.index.json": {"weight_map": {"w": "gone.safetensors"}},
        },
        {"weights.safetensors": ONE, "model.gguf": b"GGUF"},
        {"weights.safetensors": ONE, "training_args.bin": b"", "optimizer.pt": b""},
        {"model.safetensors": ONE, "adapter_model.safetensors": TWO, "adapter_config.json": {}},
        {"consolidated.safetensors": ONE},
    ],
    ids=lambda files: "+".join(files),
)
def test_the_right_file_is_chosen(tmp_path: Path, files: dict[str, bytes]) -> None:
    with open_checkpoint(write_files(tmp_path, files)) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(ReadRequest("w")), np.ones((2, 2)))


def test_a_file_uses_the_config_beside_it_unless_one_is_given(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"x.safetensors": ONE, "y.safetensors": TWO, "config.json": LLAMA_CONFIG, "mine.json": {"model_type": "x"}},
    )
    file = tmp_path / "y.safetensors"
    assert open_checkpoint(file).config == LLAMA_CONFIG
    assert open_checkpoint(str(file), config={"model_type": "bert"}).config == {"model_type": "bert"}
    assert open_checkpoint(file, config=tmp_path / "mine.json").config == {"model_type": "x"}
    assert open_checkpoint(file).read(ReadRequest("w"))[0, 0] == 2


def test_a_config_of_another_program_is_ignored(tmp_path: Path) -> None:
    files = {"model.safetensors": ONE, "config.json": {"training": {}}}
    assert open_checkpoint(write_files(tmp_path, files)).config is None


def test_an_old_config_without_a_model_type_is_used(rxnfp: Path) -> None:
    pytest.importorskip("torch")
    config = open_checkpoint(rxnfp / "bert_pretrained").config
    assert config is not None and config["num_attention_heads"] == 4


def test_minilm_reads_as_the_official_reader_reads_it(minilm: Path) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(minilm / "model.safetensors")
    with open_checkpoint(minilm) as checkpoint:
        assert checkpoint.config is not None and checkpoint.config["model_type"] == "bert"
        assert set(checkpoint.tensors) == set(tensors)
        name = "encoder.layer.3.attention.self.key.weight"
        np.testing.assert_array_equal(checkpoint.read(ReadRequest(name)), tensors[name])
