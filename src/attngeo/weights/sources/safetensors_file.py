"""Read the header of a safetensors file: 8 bytes of length, JSON, then the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, StoredTensor
from attngeo.weights.sources.checkpoint import TensorInfo
from attngeo.weights.sources.folder import parse_json_object
from attngeo.weights.sources.numbers import BITS, float_codec, refusal


def read_safetensors(file: ByteFile, config: Mapping[str, Any] | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of one safetensors file by name, from its checked header.

    config: of the model, which may say how weights that cannot be read were packed
    """
    begin = _header_end(file)
    header = parse_json_object(file.read(8, begin), f"{file.name}: the safetensors header")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        dtype, shape, start, stop = _checked(file, name, entry, file.size - begin)
        info = TensorInfo(name, shape, dtype, file.name)
        codec = float_codec(dtype)
        why = "" if codec else refusal(dtype, config)
        tensors[name] = StoredTensor(info, file, begin + start, begin + stop, codec, why)
    return tensors


def _header_end(file: ByteFile) -> int:
    """Return where the data begins: 8 + the length of the header as the file states it."""
    if file.size < 8:
        raise SourceError(f"{file.name}: has {file.size} bytes, too few for a safetensors file; it is incomplete")
    length = int.from_bytes(first := file.read(0, 8), "little")
    if first == b"version ":
        raise SourceError(f"{file.name}: is a git-lfs pointer, not the weights; run `git lfs pull`")
    if length > file.size - 8:
        raise SourceError(f"{file.name}: states a header of {length} bytes, but the whole file has {file.size}")
    return 8 + length


def _checked(file: ByteFile, name: str, entry: Any, data_size: int) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape and byte span (within the data) of one header entry, or raise SourceError."""
    where = f"{file.name}: the header of tensor {name!r}"
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
        bits = math.prod(shape) * BITS[dtype]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{where} is {entry!r}, expected dtype, shape and data_offsets") from error
    if stop > data_size:
        raise SourceError(f"{where} ends at byte {stop} of the data, which has {data_size}; the file is incomplete")
    if start < 0 or bits != (stop - start) * 8:
        raise SourceError(f"{where} gives {stop - start} bytes to {dtype} {list(shape)}, expected {bits / 8:g}")
    return dtype, shape, start, stop
