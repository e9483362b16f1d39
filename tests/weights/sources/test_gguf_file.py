"""GGUF files: SmolLM2 against the gguf package's own reader, every quantisation, lists per layer, damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from attngeo.errors import SourceError
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rope import RopeSettings, frequencies
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import Array, gguf_bytes, normal

READABLE = [q for q in gguf.GGMLQuantizationType if q in gguf.quants._type_traits and q.name != "BF16"]


def write_gguf(path: Path, tensors: dict[str, Array], **metadata: object) -> Path:
    """Write a GGUF file of architecture `llama`, with a vocabulary; `__` in a key stands for a dot."""
    tokens = {"tokens": [f"token {i}" for i in range(6000)], "scores": [0.5] * 6000}
    path.write_bytes(gguf_bytes({key.replace("__", "."): value for key, value in (metadata | tokens).items()}, tensors))
    return path


@pytest.mark.slow  # the gguf package takes long for the vocabulary
def test_smollm2_reads_as_the_gguf_package_reads_it(smollm2: Path) -> None:
    reader = gguf.GGUFReader(smollm2)
    with open_checkpoint(smollm2) as checkpoint:
        assert {t.name for t in reader.tensors} == set(checkpoint.tensors)
        assert checkpoint.config is not None
        assert checkpoint.config["model_type"] == "gguf:llama"
        assert (checkpoint.config["num_attention_heads"], checkpoint.config["num_key_value_heads"]) == (9, 3)
        assert (checkpoint.config["hidden_size"], checkpoint.config["num_hidden_layers"]) == (576, 30)
        assert checkpoint.tensors["blk.0.attn_k.weight"].shape == (192, 576)  # [out, in]
        assert checkpoint.tensors["blk.0.attn_k.weight"].dtype == "Q4_1"
        for tensor in reader.tensors[:12]:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(tensor.name)), expected)
        rows = checkpoint.read(ReadRequest("blk.3.attn_q.weight", ((64, 128), (300, 301))))
        whole = checkpoint.read(ReadRequest("blk.3.attn_q.weight"))
        np.testing.assert_array_equal(rows, np.concatenate([whole[64:128], whole[300:301]]))


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
def test_every_quantisation_that_gguf_decodes_is_read(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Blocks of random bits are equal to gguf's own decoding, row by row."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(3).integers(0, 256, (5, 4 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, kind)  # [5, 4·values]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors["w"].shape == (5, 4 * values)
        good = [row for row in range(5) if np.isfinite(expected[row]).all()]
        for row in good:
            np.testing.assert_array_equal(checkpoint.read(ReadRequest("w", ((row, row + 1),)))[0], expected[row])
        for row in set(range(5)) - set(good):
            with pytest.raises(SourceError, match="'w' holds"):
                checkpoint.read(ReadRequest("w", ((row, row + 1),)))
        assert good or kind.name in ("F16",), "the seed gave no finite row"


def test_plain_types_and_metadata_are_read(tmp_path: Path) -> None:
    tensors = {"a": normal(4, 8), "b": normal(3, 8, seed=1, dtype=np.float16), "c": normal(8, seed=2)}
    file = write_gguf(
        tmp_path / "m.gguf", tensors, attention__head_count=[4, 8], attention__key_length=32, rope__kind="none"
    )
    with open_checkpoint(file) as checkpoint:
        for name, array in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(name)), array.astype(np.float32))
        config = checkpoint.config
    assert config is not None
    assert config["num_attention_heads"] == config["num_key_value_heads"] == [4, 8]  # one per layer
    assert config["head_dim"] == 32 and config["num_hidden_layers"] == 2
    assert config["gguf"]["llama.rope.kind"] == "none"
    assert "llama.tokens" not in config["gguf"]  # too long to be a list per layer


@pytest.mark.parametrize("metadata", [{"rope__scale_linear": 4}, {"rope__scaling__factor": 4}])
def test_a_factor_without_a_scaling_type_is_that_of_linear_scaling(tmp_path: Path, metadata: dict[str, int]) -> None:
    """The first GGUF files have one number, `rope.scale_linear`; llama.cpp scales linearly where no type is stated."""
    tensors = {f"blk.0.attn_{side}.weight": normal(64, 64, seed=i) for i, side in enumerate("qk")}
    file = write_gguf(tmp_path / "m.gguf", tensors, attention__head_count=2, **metadata)
    with open_layers(file) as layers:
        assert layers.checkpoint.config is not None
        assert layers.checkpoint.config["rope_scaling"] == {"rope_type": "linear", "factor": 4}
        assert [plan.rotary_known for plan in layers.unread] == [False]  # not proved against a live model


@pytest.mark.parametrize(
    ("architecture", "metadata", "bases"),
    [
        ("gemma3", {}, [10000] * 5 + [1e6]),  # the base of layers with a window is a constant of llama.cpp
        ("gemma3", {"rope.freq_base_swa": 500.0}, [500] * 5 + [1e6]),
        ("gemma3", {"attention.sliding_window_pattern": [True, False] * 3}, [10000, 1e6] * 3),
        ("modern-bert", {}, [1e6, 10000, 10000] * 2),
        ("modern-bert", {"attention.sliding_window_pattern": 2}, [1e6, 10000] * 3),
        ("cohere2", {}, [1e6] * 3 + [None] + [1e6] * 2),  # None: a layer that does not rotate
        ("smollm3", {}, [1e6] * 3 + [None] + [1e6] * 2),
        ("gpt-oss", {}, [1e6] * 6),
    ],
)
def test_each_layer_rotates_by_the_base_of_its_kind(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], bases: list[float | None]
) -> None:
    tensors = {f"blk.{i}.attn_{side}.weight": normal(64, 64, seed=i) for i in range(6) for side in "qk"}
    known = {"attention.head_count": 4, "rope.freq_base": 1e6, "rope.dimension_count": 16}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(known | metadata, tensors, architecture))
    with open_layers(tmp_path) as layers:
        assert all(layer.rotary_known for layer in layers.unread)
        rotary = [layer.rotary for layer in layers.unread]
    found = [None if one is None else one.frequencies[1] ** -8 for one in rotary]  # of 8 pairs
    assert found == [base if base is None else pytest.approx(base) for base in bases]


def test_a_second_base_that_no_rule_describes_is_not_left_out(tmp_path: Path) -> None:
    tensors = {f"blk.0.attn_{side}.weight": normal(64, 64, seed=i) for i, side in enumerate("qk")}
    for local, known in ((1e4, True), (500.0, False)):
        metadata = {"attention.head_count": 4, "rope.freq_base": 1e4, "rope.freq_base_swa": local}
        (tmp_path / "m.gguf").write_bytes(gguf_bytes(metadata, tensors))
        with open_layers(tmp_path) as layers:
            assert layers.unread[0].rotary_known is known


def test_the_numbers_of_a_scaling_type_are_read(tmp_path: Path) -> None:
    """Gemma 3 divides the frequencies of its layers without a window; gpt-oss scales by yarn and does not round."""
    tensors = {f"blk.{i}.attn_{side}.weight": normal(64, 64, seed=i) for i in range(6) for side in "qk"}
    known = {"attention.head_count": 4, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0}
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(known | {"rope.scaling.type": "linear"}, tensors, "gemma3"))
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 4096}
    (tmp_path / "b.gguf").write_bytes(gguf_bytes(known | yarn, tensors, "gpt-oss"))
    with open_layers(tmp_path / "a.gguf") as layers:
        assert [layer.rotary.frequencies[0] for layer in layers.unread if layer.rotary] == [1] * 5 + [1 / 8]
    settings = RopeSettings(
        1e6, "yarn", 1.0, None, {"factor": 8.0, "original_max_position_embeddings": 4096, "truncate": False}
    )
    with open_layers(tmp_path / "b.gguf") as layers:
        rotary = layers.unread[0].rotary
        assert rotary is not None
        theta, factor = frequencies(settings, 16)
        np.testing.assert_allclose(rotary.frequencies, theta)
        assert rotary.factor == factor > 1


def test_split_files_are_joined_and_several_models_refused(tmp_path: Path) -> None:
    for part in (1, 2):
        write_gguf(tmp_path / f"m-0000{part}-of-00002.gguf", {f"w{part}": normal(2, 32, seed=part)})
    with open_checkpoint(tmp_path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(ReadRequest("w2")), normal(2, 32, seed=2))
        assert set(checkpoint.tensors) == {"w1", "w2"}
    with open_checkpoint(tmp_path / "m-00001-of-00002.gguf") as checkpoint:
        assert set(checkpoint.tensors) == {"w1", "w2"}
    write_gguf(tmp_path / "other.gguf", {"w": normal(2, 32)})
    with pytest.raises(SourceError, match=r"3 GGUF files .*name the one"):
        open_checkpoint(tmp_path)


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(SourceError, match=r"m\.gguf: does not begin with 'GGUF'"):
        open_checkpoint(tmp_path)


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    """Every prefix of a file gives one line that names it, also if only the last byte of a tensor is missing."""
    whole = write_gguf(tmp_path / "whole.gguf", {"a": normal(2, 32), "b": normal(2, 32)}).read_bytes()
    file = tmp_path / "cut.gguf"
    end = whole.rindex(normal(2, 32).tobytes()) + 256  # what follows is padding
    for keep in [*range(0, 400, 40), end // 2, end - 300, end - 1]:
        file.write_bytes(whole[:keep])
        with pytest.raises(SourceError, match=r"cut\.gguf: ") as caught:
            open_checkpoint(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(whole[: end - 1])
    with pytest.raises(SourceError, match=r"tensor 'b' ends at byte .* it is incomplete"):
        open_checkpoint(file)
