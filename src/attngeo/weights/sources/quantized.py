"""Weights that are not stored as they are used: FP8 with its scales is unpacked, everything else refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import FloatArray, TensorInfo

Rows = tuple[tuple[int, int], ...] | None

# what a packed module leaves beside (or instead of) its weight, and who writes it
_TRACES = {
    ".qweight": "GPTQ / AWQ",
    ".qzeros": "GPTQ / AWQ",
    ".SCB": "bitsandbytes 8-bit",
    ".weight_format": "bitsandbytes 8-bit",
    ".weight.absmax": "bitsandbytes 4-bit",
    ".weight.quant_map": "bitsandbytes 4-bit",
    ".weight.quant_state.bitsandbytes__nf4": "bitsandbytes 4-bit",
    ".weight.quant_state.bitsandbytes__fp4": "bitsandbytes 4-bit",
    ".weight_packed": "compressed-tensors",
    ".codebooks": "AQLM",
    ".weight._data": "quanto",
}

# modules that may hold queries or keys; packed experts and MLPs are none of our business
_ATTENTION = re.compile(r"att(n|ention)|(^|[._])w?(q|k|qk|qkv|query|key|query_key_value|in_proj)($|[._])", re.I)

_ADAPTER = re.compile(r"lora[_.]|\.alpha$|dora_scale|modules_to_save")


def is_float8(dtype: str) -> bool:
    """Whether the file's (or torch's, or numpy's) word for the type names an 8-bit float."""
    return dtype.upper().startswith(("F8_", "FLOAT8"))


def scale_of(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> str | None:
    """Name of the tensor that scales this FP8 one, if there is one; every convention multiplies by it."""
    if not is_float8(info.dtype):
        return None
    stem = info.name.removesuffix("weight")
    names = (f"{info.name}_scale_inv", f"{info.name}_scale", f"{stem}scale_weight", f"{stem}scale")
    return next((name for name in names if name in tensors and name != info.name), None)


def block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """FP8 block (rows, columns) as the config states it."""
    quantization = (config or {}).get("quantization_config")
    size = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return size[0], size[1]
    return None


def apply_scale(
    values: FloatArray, scale: FloatArray, info: TensorInfo, rows: Rows, block: tuple[int, int] | None
) -> None:
    """Multiply rows of an FP8 tensor, in place, by its scale: one number, one a row, or one a block."""
    if scale.size == 1:
        values *= scale.reshape(())
        return
    height = info.shape[0]
    if scale.shape in ((height,), (height, 1)) and values.ndim == 2:
        grid, block = scale.reshape(-1, 1), (1, info.shape[1])
    else:
        grid = scale
        block = _block_of(info, grid, block)
    start = 0  # row of `values`
    for first, last in rows or ((0, height),):
        for i in range(first // block[0], -(-last // block[0])):
            low, high = max(first, i * block[0]), min(last, (i + 1) * block[0])
            line = np.repeat(grid[i], block[1])[: info.shape[1]]  # [columns]
            values[start : start + high - low] *= line
            start += high - low


def _block_of(info: TensorInfo, scale: FloatArray, stated: tuple[int, int] | None) -> tuple[int, int]:
    """The block whose grid over the tensor has the scale's shape: as stated, of 128, or an even division."""
    if scale.ndim == 2 and len(info.shape) == 2 and scale.size:
        (height, width), (down, across) = info.shape, scale.shape
        even = (-(-height // down), -(-width // across))
        for rows, columns in (*((stated,) if stated else ()), (128, 128), (1, 128), even):
            if (-(-height // rows), -(-width // columns)) == (down, across):
                return rows, columns
    raise SourceError(
        f"{info.file}: tensor {info.name!r} of shape {list(info.shape)} has an FP8 scale of shape {list(scale.shape)}; "
        "one number, one a row or one a block expected"
    )


def refuse_packed(ref: str, tensors: Collection[str]) -> None:
    """Refuse by name adapters, and attention weights packed by a scheme attngeo does not unpack."""
    if tensors and all(_ADAPTER.search(name) for name in tensors):
        raise refuse_adapter(ref, None)
    for name in tensors:
        for trace, packer in _TRACES.items():
            if name.endswith(trace) and _ATTENTION.search(name[: -len(trace)]):
                raise SourceError(
                    f"{ref}: tensor {name!r} shows weights packed by {packer}; unpacked weights (or FP8, GGUF) expected"
                )


def refusal(dtype: str, config: Mapping[str, Any] | None) -> str:
    """Why a tensor that is no float is not read, for the line that names it."""
    quantization = (config or {}).get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return f"is stored as {dtype}{f', packed by {method}' if method else ''}; floating-point weights expected"


def refuse_adapter(ref: str, base: str | None) -> SourceError:
    """The error for a folder or file that holds an adapter and not a model."""
    return SourceError(
        f"{ref}: holds only an adapter{f' of {base!r}' if base else ''}; a whole model expected: merge it first"
    )
