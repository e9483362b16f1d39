"""Stored numbers → float32, a cache-sized chunk at a time, with a finiteness check that costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attngeo.weights.sources.checkpoint import FloatArray

Bytes = NDArray[np.uint8]

# bits per value of every safetensors dtype; the header is checked against them
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

# Read as integers, a float's infinities and NaNs are the largest of their sign: the first such pattern, and its width.
_FIRST_NONFINITE = {"F64": 0x7FF0 << 48, "F32": 0x7F80 << 16, "F16": 0x7C00, "BF16": 0x7F80}
_FLOAT8 = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


@dataclass(frozen=True)
class Codec:
    """How a run of stored bytes becomes float32 values; `unit` bytes hold `values` of them and are never split."""

    unit: int
    values: int
    decode: Callable[[Bytes, FloatArray], None]  # (raw [n·unit], out [n·values]): fills out
    finite: Callable[[Bytes, FloatArray], bool]  # the same pair after decoding
    plain: bool = False  # the bytes are float32 already: read straight into the result


def all_finite(values: NDArray[np.floating]) -> bool:
    """No NaN and no infinity, from two integer maxima (several times faster than isfinite)."""
    kind = {2: "F16", 4: "F32", 8: "F64"}[values.dtype.itemsize]
    return _bits_finite(values.reshape(-1).view(f"u{values.dtype.itemsize}"), _FIRST_NONFINITE[kind])


def _bits_finite(bits: NDArray[np.unsignedinteger], first: int) -> bool:
    if bits.size == 0:
        return True
    width = bits.dtype.itemsize
    positive = int(bits.view(f"i{width}").max()) < first
    return positive and int(bits.max()) < first | 1 << (8 * width - 1)


def is_float(dtype: str) -> bool:
    """Whether a safetensors dtype can be read as weights."""
    return dtype in _FIRST_NONFINITE or dtype in _FLOAT8


@cache
def float_codec(dtype: str) -> Codec:
    """Codec of one of the safetensors float types (little-endian, as everywhere the format is used)."""
    if dtype in _FLOAT8:
        return Codec(1, 1, _decode_float8(dtype), lambda _, out: all_finite(out))
    width = BITS[dtype] // 8
    first = _FIRST_NONFINITE[dtype]

    def finite(raw: Bytes, _: FloatArray) -> bool:
        return _bits_finite(raw.view(f"<u{width}"), first)

    if dtype == "F32":
        return Codec(4, 1, lambda raw, out: np.copyto(out, raw.view("<f4")), finite, plain=True)
    if dtype == "F64":
        # a double outside float32's range overflows: that is an infinity too
        return Codec(8, 1, _decode_double, lambda raw, out: all_finite(out))
    if dtype == "F16":
        return Codec(2, 1, lambda raw, out: np.copyto(out, raw.view("<f2")), finite)
    from ml_dtypes import bfloat16  # its cast is one pass and lets go of the interpreter lock

    return Codec(2, 1, lambda raw, out: np.copyto(out, raw.view(bfloat16), casting="unsafe"), finite)


def _decode_double(raw: Bytes, out: FloatArray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, raw.view("<f8"), casting="same_kind")


def _decode_float8(dtype: str) -> Callable[[Bytes, FloatArray], None]:
    import ml_dtypes

    values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, _FLOAT8[dtype])).astype(np.float32)  # [256]
    # two bytes at a time: 65,536 pairs of float32, each moved as one 8-byte word
    pairs = np.stack(np.broadcast_arrays(values[None, :], values[:, None]), axis=-1).reshape(-1, 2)
    words = np.ascontiguousarray(pairs).view(np.uint64).reshape(-1)  # [65536], low byte first

    def decode(raw: Bytes, out: FloatArray) -> None:
        even = raw.size & ~1
        np.take(words, raw[:even].view("<u2"), out=out[:even].view(np.uint64), mode="clip")
        out[even:] = values[raw[even:]]

    return decode
