"""Packed weights and adapters are refused by name, but only if they concern the attention."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attngeo.errors import SourceError
from attngeo.weights.layout.layers import open_layers
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

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
INTS = np.zeros((4, 4), np.int32)
PACKS: list[tuple[str, dict[str, Array]]] = [
    ("GPTQ / AWQ", {f"{Q}.qweight": INTS, f"{Q}.qzeros": INTS, f"{Q}.scales": normal(4, 4, dtype=np.float16)}),
    ("bitsandbytes 8-bit", {f"{Q}.weight": np.zeros((4, 4), np.int8), f"{Q}.SCB": normal(4)}),
    ("bitsandbytes 4-bit", {f"{Q}.weight": np.zeros((8, 1), np.uint8), f"{Q}.weight.absmax": normal(4)}),
    ("bitsandbytes 4-bit", {f"{Q}.weight.quant_state.bitsandbytes__nf4": np.zeros(9, np.uint8)}),
    ("compressed-tensors", {f"{Q}.weight_packed": INTS, f"{Q}.weight_shape": np.array([4, 32])}),
    ("AQLM", {f"{Q}.codes": INTS, f"{Q}.codebooks": normal(2, 4)}),
    ("GPTQ / AWQ", {"transformer.h.0.mixer.Wqkv.qweight": INTS}),
]


@pytest.mark.parametrize(("packer", "tensors"), PACKS, ids=[f"{packer} {next(iter(t))}" for packer, t in PACKS])
def test_packed_attention_is_refused_by_name(tmp_path: Path, packer: str, tensors: dict[str, Array]) -> None:
    write_files(tmp_path, {"model.safetensors": safetensors_bytes(tensors), "config.json": LLAMA_CONFIG})
    with pytest.raises(SourceError, match=packer) as caught:
        open_checkpoint(tmp_path)
    assert next(iter(tensors)).rpartition(".")[0] in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize("in_memory", [False, True])
def test_two_weights_in_a_byte_are_refused_for_their_type_not_their_shape(tmp_path: Path, in_memory: bool) -> None:
    """NVFP4 and BitNet pack weights under their usual names."""
    packed = {f"{Q}.weight": np.zeros((64, 32), np.uint8), f"{K}.weight": np.zeros((32, 32), np.uint8)}
    tensors = llama_like_tensors(1) | packed
    config = {**LLAMA_CONFIG, "quantization_config": {"quant_method": "modelopt"}}
    write_files(tmp_path, {"model.safetensors": safetensors_bytes(tensors), "config.json": config})
    with (
        open_checkpoint(tensors if in_memory else tmp_path, config=config) as checkpoint,
        pytest.raises(SourceError, match=r"q_proj.weight' is stored as (U8|uint8), packed by modelopt; floating-point"),
    ):
        open_layers(checkpoint)


def test_packed_experts_do_not_matter(tmp_path: Path) -> None:
    """gpt-oss packs only its experts; its attention is plain bf16."""
    mlp = "model.layers.0.mlp.experts"
    packed = {
        f"{mlp}.gate_up_proj_blocks": np.zeros((2, 4), np.uint8),
        f"{mlp}.gate_up_proj_scales": np.zeros((2, 4), np.uint8),
    }
    packed |= {"model.layers.0.mlp.up_proj.qweight": INTS, "model.layers.0.mlp.up_proj.qzeros": INTS}
    write_files(tmp_path, {"model.safetensors": safetensors_bytes({**llama_like_tensors(1), **packed})})
    write_files(tmp_path, {"config.json": {**LLAMA_CONFIG, "quantization_config": {"quant_method": "mxfp4"}}})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read(ReadRequest(f"{Q}.weight")).shape == (64, 64)
        with pytest.raises(SourceError, match=r"gate_up_proj_blocks' is stored as U8, packed by mxfp4; floating"):
            checkpoint.read(ReadRequest(f"{mlp}.gate_up_proj_blocks"))


FP8_CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 40]}}


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("rows", [None, ((10, 60), (90, 91), (120, 140), (143, 144))], ids=str)
@pytest.mark.parametrize(
    ("shape", "scales", "block", "config"),
    [
        ((144, 120), (3, 3), (48, 40), FP8_CONFIG),
        ((144, 120), (3, 3), (48, 40), {}),  # the block is inferred
        ((200, 300), (2, 3), (128, 128), {}),  # the last blocks end inside the tensor
        ((144, 4), (144,), (1, 4), {}),
        ((144, 4), (1,), (144, 4), {}),
        ((144, 4), None, (144, 4), {}),  # no scale: as it is
    ],
)
def test_fp8_is_multiplied_by_its_scales(
    tmp_path: Path,
    shape: tuple[int, int],
    scales: tuple[int, ...] | None,
    block: tuple[int, int],
    config: dict[str, object],
    rows: tuple[tuple[int, int], ...] | None,
    in_memory: bool,
) -> None:
    tensors: dict[str, Array] = {"q.weight": normal(*shape, dtype=ml_dtypes.float8_e4m3fn)}
    full = tensors["q.weight"].astype(np.float32)
    if scales is not None:
        scale = tensors["q.weight_scale_inv"] = np.asarray(np.abs(normal(*scales, seed=1)) + np.float32(0.1))
        grid = scale.reshape(-1, 1) if scale.ndim < 2 else scale
        full *= np.kron(grid, np.ones(block, np.float32))[: shape[0], : shape[1]]
    write_files(
        tmp_path, {"model.safetensors": safetensors_bytes(tensors), "config.json": {"model_type": "x", **config}}
    )
    with open_checkpoint(tensors if in_memory else tmp_path, config=config if in_memory else None) as checkpoint:
        values = checkpoint.read(ReadRequest("q.weight", rows))
    np.testing.assert_array_equal(values, full if rows is None else np.concatenate([full[a:b] for a, b in rows]))


def test_an_fp8_scale_of_unknown_shape_is_an_error() -> None:
    scales = {"q.weight": normal(6, 4, dtype=ml_dtypes.float8_e4m3fn), "q.weight_scale": np.ones((5, 3, 2), np.float32)}
    with (
        open_checkpoint(scales) as opened,
        pytest.raises(SourceError, match=r"'q\.weight'.*scale of shape \[5, 3, 2\]"),
    ):
        opened.read(ReadRequest("q.weight"))


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_a_folder_with_only_an_adapter_is_refused(tmp_path: Path, file: str) -> None:
    lora = safetensors_bytes({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": normal(2, 4)})
    write_files(
        tmp_path, {file: lora, "adapter_config.json": {"base_model_name_or_path": "org/base"}, "training_args.bin": b""}
    )
    with pytest.raises(SourceError, match=r"only an adapter of 'org/base', expected a whole model"):
        open_checkpoint(tmp_path)


def test_an_adapter_is_refused_under_any_file_name(tmp_path: Path) -> None:
    lora = {f"base_model.model.{Q}.lora_{side}.weight": normal(2, 4) for side in "AB"}
    write_files(tmp_path, {"weights.safetensors": safetensors_bytes(lora)})
    for ref in (tmp_path, tmp_path / "weights.safetensors"):
        with pytest.raises(SourceError, match=r"only an adapter, expected a whole model"):
            open_checkpoint(ref)
