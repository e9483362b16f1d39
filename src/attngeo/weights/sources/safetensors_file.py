"""Read the header of a safetensors file: 8 bytes of length, JSON, then the data. Nothing in it is trusted unchecked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, StoredTensor
from attngeo.weights.sources.checkpoint import TensorInfo
from attngeo.weights.sources.numbers import BITS, fits_array, float_codec, refusal


def read_safetensors(file: ByteFile, config: Mapping[str, Any] | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of one safetensors file by name, from its checked header.

    config: of the model, which may say how weights that cannot be read were packed
    """
    begin = _header_end(file)
    entries = _parse(file, file.read(8, begin))
    tensors = {}
    for name, entry in entries.items():
        dtype, shape, start, stop = _checked(file, name, entry, file.size - begin)
        info = TensorInfo(name, shape, dtype, file.name)
        codec = float_codec(dtype)
        why = "" if codec else refusal(dtype, config)
        tensors[name] = StoredTensor(info, file, begin + start, begin + stop, codec, why)
    _check_tiling(file, begin, tensors)
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


def _parse(file: ByteFile, data: bytes) -> dict[str, Any]:
    """Return the header entries by tensor name, without the free-form metadata."""
    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file.name}: the safetensors header is not valid JSON") from error
    if not isinstance(header, dict):
        raise SourceError(f"{file.name}: the safetensors header is a JSON {type(header).__name__}, expected an object")
    header.pop("__metadata__", None)
    return header


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _checked(file: ByteFile, name: str, entry: object, data_size: int) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape and byte span (within the data) of one header entry, or raise SourceError."""

    def wrong(what: str) -> SourceError:
        return SourceError(f"{file.name}: the header of tensor {name!r} {what}")

    if not isinstance(entry, dict):
        raise wrong("is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"has dtype {dtype!r}, expected a safetensors type")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise wrong("has no shape or no pair of data_offsets of non-negative integers")
    count = math.prod(shape)
    if not fits_array(shape):
        raise wrong(f"has shape {shape}, which is more than an array can have")
    start, stop = offsets
    if start > stop:
        raise wrong(f"has data_offsets {offsets} in the wrong order")
    if stop > data_size:
        raise wrong(f"ends at byte {stop} of the data, which has {data_size}; the file is incomplete")
    if count * BITS[dtype] != (stop - start) * 8:
        raise wrong(f"gives {stop - start} bytes to {dtype} {shape}, expected {count * BITS[dtype] / 8:g}")
    return dtype, tuple(shape), start, stop


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _check_tiling(file: ByteFile, begin: int, tensors: Mapping[str, StoredTensor]) -> None:
    """Check that the tensors cover the data exactly; an overlap or a gap means that some offsets are wrong."""
    end, before = begin, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != end:
            what = "overlaps" if tensor.start < end else "leaves a gap after"
            raise SourceError(
                f"{file.name}: tensor {tensor.info.name!r} {what} {before}, expected adjacent data_offsets"
            )
        end, before = tensor.stop, f"tensor {tensor.info.name!r}"
    if end != file.size:
        raise SourceError(f"{file.name}: has {file.size - end} bytes after its last tensor, expected none")
