"""Weights that are not stored as they are used: FP8 is multiplied by its scales, other packings are refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from attngeo.errors import InputError, SourceError
from attngeo.weights.sources.checkpoint import FloatArray, RowSpans, TensorInfo
from attngeo.weights.sources.dtypes import all_finite

# Suffixes of the tensors that a packed module has beside or instead of its weight, and the library that writes them.
_PACKED_SUFFIXES = {
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
    "._packed_params.dtype": "torch.ao.quantization",
    "._packed_params._packed_params": "torch.ao.quantization",
}

# Packages of torch with modules that hold packed weights.
_TORCH_QUANTISED = ("torch.ao.nn.quantized.", "torch.ao.nn.intrinsic.quantized.", "torch.ao.nn.sparse.quantized.")

# Modules that may hold queries or keys. Packed experts and MLPs do not matter, because they are never read.
_ATTENTION = re.compile(r"att(n|ention)|(^|[._])w?(q|k|qk|qkv|query|key|query_key_value|in_proj)($|[._])", re.I)

_ADAPTER = re.compile(r"lora[_.]|\.alpha$|dora_scale|modules_to_save")


def may_hold_attention(name: str) -> bool:
    """Return whether the module of this name may hold queries or keys."""
    return _ATTENTION.search(name) is not None


def is_float8(dtype: str) -> bool:
    """Return whether a dtype, as named by safetensors, torch or NumPy, is an 8-bit float."""
    return dtype.upper().startswith(("F8_", "FLOAT8"))


def scale_of(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> str | None:
    """Return the name of the tensor that scales an FP8 tensor, if there is one; all conventions multiply by it."""
    if not is_float8(info.dtype):
        return None
    stem = info.name.removesuffix("weight")
    own = ("scale_weight", "qscale_weight", "scale")  # qscale_weight: of Mistral's own format
    names = (f"{info.name}_scale_inv", f"{info.name}_scale", *(f"{stem}{name}" for name in own))
    return next((name for name in names if name in tensors and name != info.name), None)


def block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Return rows and columns per FP8 scale as the config states them."""
    quantization = (config or {}).get("quantization_config")
    size = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return size[0], size[1]
    return None


def apply_scale(
    values: FloatArray, scale: FloatArray, info: TensorInfo, rows: RowSpans | None, block: tuple[int, int] | None
) -> None:
    """Multiply rows of an FP8 tensor, in place, by its scale.

    values: the rows that were read
    scale:  one number, one per row, or one per block of rows and columns
    info:   of the whole tensor
    rows:   spans of the rows in `values`; None for all
    block:  rows and columns per scale, if known
    """
    with np.errstate(over="ignore"):  # an overflow is an infinity, which is reported below
        if scale.size == 1:
            values *= scale.reshape(())
        else:
            down, across = _block_of(info, scale, block)
            lines = np.repeat(scale.reshape(len(scale), -1), across, axis=1)[
                :, : info.shape[1]
            ]  # [row blocks, columns]
            at = 0  # row of `values`
            for start, stop in rows or ((0, info.shape[0]),):
                for i in range(start // down, -(-stop // down)):
                    count = min(stop, (i + 1) * down) - max(start, i * down)
                    values[at : at + count] *= lines[i]
                    at += count
    if not all_finite(values):
        raise SourceError(f"{info.file}: tensor {info.name!r} times its FP8 scale is too large for float32")


def _block_of(info: TensorInfo, scale: FloatArray, stated: tuple[int, int] | None) -> tuple[int, int]:
    """Return the block whose grid over the tensor has the shape of the scale: as stated, of 128, or even parts."""
    if len(info.shape) == 2 and scale.size:
        height, width = info.shape
        if scale.shape in ((height,), (height, 1)):
            return 1, width
        if scale.ndim == 2:
            even = (max(1, -(-height // scale.shape[0])), max(1, -(-width // scale.shape[1])))
            for rows, columns in (*((stated,) if stated else ()), (128, 128), (1, 128), even):
                if (-(-height // rows), -(-width // columns)) == scale.shape:
                    return rows, columns
    raise SourceError(
        f"{info.file}: tensor {info.name!r} of shape {list(info.shape)} has an FP8 scale of shape {list(scale.shape)}, "
        "expected one number, one per row or one per block"
    )


def refuse_adapter(ref: str, tensors: Collection[str]) -> None:
    """Raise SourceError if every tensor belongs to an adapter."""
    if tensors and all(_ADAPTER.search(name) for name in tensors):
        raise adapter_error(ref, None)


def refuse_packed(ref: str, names: Iterable[str]) -> None:
    """Raise SourceError for attention weights that are packed in a way attngeo does not read.

    names: of the tensors, and of values that are no tensors where a format has them
    """
    for name in names:
        for suffix, library in _PACKED_SUFFIXES.items():
            if name.endswith(suffix) and may_hold_attention(name[: -len(suffix)]):
                raise SourceError(
                    f"{ref}: tensor {name!r} belongs to weights packed by {library}, expected unpacked weights, FP8 "
                    "or GGUF"
                )


def quantised_modules(module: Any) -> Iterator[str]:
    """Yield the paths of the modules inside a torch module that torch.ao.quantization has put in place of float ones.

    They keep their weights packed, outside of parameters and buffers, and have no gradients.
    """
    for path, part in module.named_modules():
        if type(part).__module__.startswith(_TORCH_QUANTISED) and not path.endswith("._packed_params"):
            yield path


def refuse_unreadable(module: Any) -> None:
    """Raise InputError for a torch module whose attention weights are packed or flattened."""
    for path in filter(may_hold_attention, quantised_modules(module)):
        raise quantised_error(module, path)
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise InputError(
            f"{type(module).__name__}: FullyShardedDataParallel (FSDP 1) flattens its weights; shard the model by FSDP "
            "2, torch.distributed.fsdp.fully_shard"
        )


def quantised_error(module: Any, path: str) -> InputError:
    """Return the error for a torch module in which torch.ao.quantization has replaced the module at `path`."""
    return InputError(
        f"{type(module).__name__}: {path} is quantised by torch.ao.quantization, expected float weights; pass the "
        "model as it was before quantisation (quantize_dynamic)"
    )


def refusal(dtype: str, config: Mapping[str, Any] | None) -> str:
    """Return why a tensor that is not floating-point is not read, as the end of a sentence about the tensor."""
    quantization = (config or {}).get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return f"is stored as {dtype}{f', packed by {method}' if method else ''}; floating-point weights expected"


def adapter_error(ref: str, base: str | None) -> SourceError:
    """Return the error for a folder or a file that holds an adapter and no model.

    base: the model that the adapter changes, if known
    """
    return SourceError(
        f"{ref}: holds only an adapter{f' of {base!r}' if base else ''}, expected a whole model; merge them first"
    )
