"""GGUF: header read here (the gguf package takes seconds over a vocabulary), blocks decoded by the gguf package."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_checkpoint import StoredTensor
from attngeo.weights.sources.byte_file import ByteFile
from attngeo.weights.sources.checkpoint import FloatArray, TensorInfo
from attngeo.weights.sources.dtypes import Bytes, Codec, all_finite, float_codec
from attngeo.weights.sources.quantized import refusal

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEEP = 4096  # longest array kept: per-layer lists are short, vocabularies are not wanted

# metadata key after the architecture → the name transformers' configs use
_CONFIG = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.causal": "is_causal",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "rope.dimension_count": "rotary_dim",
    "vocab_size": "vocab_size",
}


class _Cursor:
    """Reads forward through a file, in growing pieces, so that a remote one costs few requests."""

    def __init__(self, file: ByteFile) -> None:
        self.file, self.at, self._data = file, 0, b""

    def take(self, count: int) -> bytes:
        stop = self.at + count
        if stop > len(self._data):
            if stop > self.file.size:
                raise SourceError(f"{self.file.name}: cut short at byte {self.file.size}, inside the GGUF header")
            end = min(max(stop, 2 * len(self._data), 1 << 18), self.file.size)
            self._data += self.file.read(len(self._data), end)
        data = self._data[self.at : stop]
        self.at = stop
        return data

    def scalar(self, kind: int) -> Any:
        code = _SCALARS.get(kind)
        if code is None:
            raise SourceError(f"{self.file.name}: GGUF header has a value of unknown type {kind}")
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(int.from_bytes(self.take(8), "little")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A metadata value; arrays too long to be per-layer lists are walked over and come back as None."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(kind)
        item, count = self.scalar(4), self.scalar(10)
        if depth > 2 or count > self.file.size:
            raise SourceError(f"{self.file.name}: GGUF header has an array of {count} items nested {depth} deep")
        if item in _SCALARS and count > _KEEP:
            self.take(count * struct.calcsize(_SCALARS[item]))
            return None
        if count > _KEEP and item == _STRING:
            for _ in range(count):
                self.take(int.from_bytes(self.take(8), "little"))
            return None
        return [self.value(item, depth + 1) for _ in range(count)]


def read_gguf(file: ByteFile) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Every tensor of one GGUF file, shapes [out, in] as torch has them, and a config made of its metadata."""
    cursor = _Cursor(file)
    if file.size < 24 or cursor.take(4) != b"GGUF":
        raise SourceError(f"{file.name}: does not begin with 'GGUF'; a GGUF file expected")
    version = cursor.scalar(4)
    if version not in (2, 3):
        raise SourceError(f"{file.name}: GGUF version {version}; 2 or 3 (little-endian) expected")
    tensor_count, value_count = cursor.scalar(10), cursor.scalar(10)
    metadata = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar(4))
    table = [_table_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise SourceError(f"{file.name}: GGUF alignment {alignment!r}, a positive integer expected")
    begin = -(-cursor.at // alignment) * alignment
    stored_tensors = {name: _stored(file, name, shape, kind, begin + offset) for name, shape, kind, offset in table}
    if len(stored_tensors) != len(table):
        raise SourceError(f"{file.name}: {len(table)} tensors share {len(stored_tensors)} names")
    return stored_tensors, _config(metadata)


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, axes = cursor.string(), cursor.scalar(4)
    if axes > 8:
        raise SourceError(f"{cursor.file.name}: tensor {name!r} has {axes} axes, at most 4 expected")
    shape = tuple(cursor.scalar(10) for _ in range(axes))[::-1]  # GGUF counts the fastest axis first
    return name, shape, cursor.scalar(4), cursor.scalar(10)


def _stored(file: ByteFile, name: str, shape: tuple[int, ...], kind: int, start: int) -> StoredTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        quantization = GGMLQuantizationType(kind)
        values, unit = GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise SourceError(f"{file.name}: tensor {name!r} has GGUF type {kind}, unknown to the gguf package") from error
    if shape and shape[-1] % values:
        raise SourceError(f"{file.name}: tensor {name!r} has rows of {shape[-1]}, a multiple of {values} expected")
    stop = start + math.prod(shape) // values * unit
    if stop > file.size:
        raise SourceError(f"{file.name}: cut short, tensor {name!r} ends at byte {stop} and the file has {file.size}")
    info = TensorInfo(name, shape, quantization.name, file.name)
    codec = _codec(quantization, values, unit)
    return StoredTensor(info, file, start, stop, codec, "" if codec else refusal(quantization.name, None))


def _codec(quantization: Any, values: int, unit: int) -> Codec | None:
    from gguf import quants

    if quantization.name in ("F64", "F32", "F16", "BF16"):
        return float_codec(quantization.name)
    if quantization not in quants._type_traits:  # integers, and types gguf can write but not read
        return None

    def decode(raw: Bytes, out: FloatArray) -> None:
        with np.errstate(all="ignore"):  # a NaN scale is reported by the check that follows
            np.copyto(out, quants.dequantize(raw[None], quantization)[0])  # as one row: gguf loops over rows

    return Codec(unit, values, decode, lambda _, out: all_finite(out))


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers would call it; everything else of the metadata under "gguf", without the tokenizer."""
    arch = str(metadata.get("general.architecture", "unknown"))
    config: dict[str, Any] = {"model_type": f"gguf:{arch}"}
    for key, name in _CONFIG.items():
        if (value := metadata.get(f"{arch}.{key}")) is not None:
            config[name] = value
    if "num_attention_heads" in config:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config["gguf"] = {
        key: value for key, value in metadata.items() if value is not None and not key.startswith("tokenizer.")
    }
    return config
