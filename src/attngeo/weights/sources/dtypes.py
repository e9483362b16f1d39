"""Convert stored numbers to float32 in chunks that fit the cache, with a cheap check for finite values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attngeo.weights.sources.checkpoint import FloatArray

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
_MAX_AXES = 32  # NumPy arrays have at most 64
_MAX_VALUES = 1 << 60


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


def fits_array(shape: Sequence[int]) -> bool:
    """Return whether an array can have this shape: few axes, and fewer bytes than 64 bits can count."""
    return len(shape) <= _MAX_AXES and math.prod(n for n in shape if n) < _MAX_VALUES


def is_float(dtype: str) -> bool:
    """Return whether a safetensors dtype can be read as weights."""
    return dtype in ("F64", "F32", "F16", "BF16") or dtype in _FLOAT8


@cache
def float_codec(dtype: str) -> Codec:
    """Return the codec of a safetensors float type; the format is little-endian everywhere."""
    if dtype in _FLOAT8:
        return Codec(1, 1, _decode_float8(dtype))
    width = BITS[dtype] // 8
    return Codec(width, 1, _decode_bfloat16 if dtype == "BF16" else _cast_from(f"<f{width}"), plain=dtype == "F32")


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
    # Two bytes at a time: a table of 65,536 pairs of float32, each of which is copied as one 8-byte word.
    pairs = np.stack(np.broadcast_arrays(values[None, :], values[:, None]), axis=-1).reshape(-1, 2)  # [65536, 2]
    words = np.ascontiguousarray(pairs).view(np.uint64).reshape(-1)  # [65536], indexed by the low byte first

    def decode(raw: Bytes, out: FloatArray) -> None:
        even = raw.size & ~1
        np.take(words, raw[:even].view("<u2"), out=out[:even].view(np.uint64), mode="clip")
        out[even:] = values[raw[even:]]

    return decode
