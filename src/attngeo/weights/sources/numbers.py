"""How stored numbers become float32, and which weights are refused because they do not.

float_codec, Codec        floats of every type, converted in chunks that fit the cache
all_finite                a cheap check for finite values
read_with_scale           8-bit floats, which are multiplied by their scales
refuse_packed, …          weights that are packed in other ways, and adapters
may_hold_attention        tells by the name of a module whether its weights matter
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import InputError, SourceError
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, RowSpans, TensorInfo

Bytes = NDArray[np.uint8]

# Bits per value of every safetensors dtype; headers are checked against them.
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

_FLOAT8 = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


@dataclass(frozen=True)
class Codec:
    """How stored bytes become float32 values: `unit` bytes hold `values` of them and are never split."""

    unit: int
    values: int
    decode: Callable[[Bytes, FloatArray], None]  # (raw [n·unit], out [n·values]); fills out
    plain: bool = False  # true if the bytes are float32 already and can be read straight into the result


def all_finite(values: FloatArray) -> bool:
    """Return whether `values` contain no NaN and no infinity.

    Read as integers, infinities and NaNs are the largest numbers of their sign. Two maxima over the bits decide, which
    is several times faster than `np.isfinite`.
    """
    bits = values.reshape(-1).view("<i4")
    return not bits.size or bool(bits.max() < 0x7F80 << 16 and bits.view("<u4").max() < 0xFF80 << 16)


@cache
def float_codec(dtype: str) -> Codec | None:
    """Return the codec of a safetensors type, little-endian everywhere; None for one that holds no floats."""
    if dtype in _FLOAT8:
        return Codec(1, 1, _decode_float8(dtype))
    if dtype == "BF16":
        return Codec(2, 1, _decode_bfloat16)
    if dtype in ("F64", "F32", "F16"):
        width = BITS[dtype] // 8
        return Codec(width, 1, _cast_from(f"<f{width}"), plain=dtype == "F32")
    return None


def _decode_bfloat16(raw: Bytes, out: FloatArray) -> None:
    bits = out.view("<u4")  # bfloat16 is the upper half of float32
    np.copyto(bits, raw.view("<u2"))
    np.left_shift(bits, 16, out=bits)


def _cast_from(kind: str) -> Callable[[Bytes, FloatArray], None]:
    def decode(raw: Bytes, out: FloatArray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large becomes an infinity, which is checked
            np.copyto(out, raw.view(kind), casting="same_kind")

    return decode


def _decode_float8(dtype: str) -> Callable[[Bytes, FloatArray], None]:
    import ml_dtypes

    values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, _FLOAT8[dtype])).astype(np.float32)  # [256]

    def decode(raw: Bytes, out: FloatArray) -> None:
        np.take(values, raw, out=out, mode="clip")  # many times faster than the casts of ml_dtypes

    return decode


# ---- 8-bit floats with scales


def read_with_scale(
    checkpoint: Checkpoint, request: ReadRequest, read: Callable[[ReadRequest], FloatArray]
) -> FloatArray:
    """Return the values of a request, those of an FP8 tensor multiplied by its scale.

    read: returns stored values, before they are multiplied
    """
    values, info = read(request), checkpoint.tensors[request.name]
    if (scale := scale_of(info, checkpoint.tensors)) is not None:
        _apply_scale(values, read(ReadRequest(scale)), info, request.rows, _block_size(checkpoint.config))
    return values


def scale_of(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> str | None:
    """Return the name of the tensor that scales an FP8 tensor, if there is one; all conventions multiply by it."""
    if not info.dtype.upper().startswith(("F8_", "FLOAT8")):  # as named by safetensors, torch and NumPy
        return None
    stem = info.name.removesuffix("weight")
    own = ("scale_weight", "qscale_weight", "scale")  # qscale_weight: of Mistral's own format
    names = (f"{info.name}_scale_inv", f"{info.name}_scale", *(f"{stem}{name}" for name in own))
    return next((name for name in names if name in tensors and name != info.name), None)


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Return rows and columns per FP8 scale as the config states them."""
    quantization = (config or {}).get("quantization_config")
    size = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return size[0], size[1]
    return None


def _apply_scale(
    values: FloatArray, scale: FloatArray, info: TensorInfo, rows: RowSpans | None, block: tuple[int, int] | None
) -> None:
    """Multiply rows of an FP8 tensor, in place, by its scale.

    values: the rows that were read
    scale:  one number, one per row, or one per block of rows and columns
    info:   of the whole tensor
    rows:   spans of the rows in `values`; None for all
    block:  rows and columns per scale, if known
    """
    if scale.size == 1:
        values *= scale.reshape(())
        return
    down, across = _block_of(info, scale, block)
    lines = np.repeat(scale.reshape(len(scale), -1), across, axis=1)[:, : info.shape[1]]  # [row blocks, columns]
    at = 0  # row of `values`
    for start, stop in rows or ((0, info.shape[0]),):
        for i in range(start // down, -(-stop // down)):
            count = min(stop, (i + 1) * down) - max(start, i * down)
            values[at : at + count] *= lines[i]
            at += count


def _block_of(info: TensorInfo, scale: FloatArray, stated: tuple[int, int] | None) -> tuple[int, int]:
    """Return the block whose grid over the tensor has the shape of the scale: as stated, of 128, or even parts."""
    if len(info.shape) == 2:
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


# ---- packed weights and adapters

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
