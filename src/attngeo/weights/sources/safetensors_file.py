"""Safetensors: 8 bytes of length, a JSON header, the data; the header is believed only where the file bears it out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_checkpoint import StoredTensor
from attngeo.weights.sources.byte_file import ByteFile
from attngeo.weights.sources.checkpoint import TensorInfo
from attngeo.weights.sources.dtypes import BITS, float_codec, is_float
from attngeo.weights.sources.quantized import refusal

MAX_HEADER = 100_000_000  # bytes; the format's own limit


def read_safetensors(file: ByteFile, config: Mapping[str, Any] | None = None) -> dict[str, StoredTensor]:
    """Every tensor of one safetensors file, from its checked header."""
    begin = _header_end(file)
    entries = _parse(file, file.read(8, begin))
    stored_tensors = {}
    for name, entry in entries.items():
        dtype, shape, start, stop = _checked(file, name, entry, file.size - begin)
        info = TensorInfo(name, shape, dtype, file.name)
        codec = float_codec(dtype) if is_float(dtype) else None
        stored_tensors[name] = StoredTensor(
            info, file, begin + start, begin + stop, codec, "" if codec else refusal(dtype, config)
        )
    _check_tiling(file, begin, stored_tensors)
    return stored_tensors


def _header_end(file: ByteFile) -> int:
    """Where the data begins: 8 + the length the file claims for its header."""
    if file.size < 8:
        raise SourceError(f"{file.name}: {file.size} bytes are no safetensors file; it is cut short or empty")
    length = int.from_bytes(first := file.read(0, 8), "little")
    if first == b"version ":
        raise SourceError(f"{file.name}: is a git-lfs pointer, not the weights: run `git lfs pull`")
    if length > MAX_HEADER:
        raise SourceError(f"{file.name}: claims a header of {length} bytes, at most {MAX_HEADER} expected")
    if length > file.size - 8:
        raise SourceError(f"{file.name}: claims a header of {length} bytes, but the whole file has {file.size}")
    return 8 + length


def _parse(file: ByteFile, data: bytes) -> dict[str, Any]:
    """Header entries by tensor name, without the free-form metadata."""
    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file.name}: safetensors header is not valid JSON") from error
    if not isinstance(header, dict):
        raise SourceError(f"{file.name}: safetensors header is a JSON {type(header).__name__}, an object expected")
    header.pop("__metadata__", None)
    return header


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _checked(file: ByteFile, name: str, entry: Any, data_size: int) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape and byte span (within the data) of one header entry, or an error that says what is wrong with it."""

    def wrong(what: str) -> SourceError:
        return SourceError(f"{file.name}: header of tensor {name!r} {what}")

    if not isinstance(entry, dict):
        raise wrong("is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"has dtype {dtype!r}, a safetensors type expected")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise wrong("lacks a shape or a pair of data_offsets of non-negative integers")
    start, stop = offsets
    if start > stop:
        raise wrong(f"has data_offsets {offsets} in the wrong order")
    if stop > data_size:
        raise wrong(f"ends at byte {stop} of the data, which has {data_size}: the file is cut short or its header lies")
    if math.prod(shape) * BITS[dtype] != (stop - start) * 8:
        raise wrong(f"gives {stop - start} bytes to {dtype} {shape}, {math.prod(shape) * BITS[dtype] / 8:g} expected")
    return dtype, tuple(shape), start, stop


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _check_tiling(file: ByteFile, begin: int, stored_tensors: Mapping[str, StoredTensor]) -> None:
    """The tensors must cover the data exactly: an overlap or a hole means that some offsets are wrong."""
    end, before = begin, "the header"
    for stored in sorted(stored_tensors.values(), key=lambda stored: (stored.start, stored.stop)):
        if stored.start != end:
            what = "overlaps" if stored.start < end else "leaves a hole after"
            raise SourceError(
                f"{file.name}: tensor {stored.info.name!r} {what} {before}; adjacent data_offsets expected"
            )
        end, before = stored.stop, f"tensor {stored.info.name!r}"
    if end != file.size:
        raise SourceError(f"{file.name}: has {file.size - end} bytes after its last tensor, none expected")
