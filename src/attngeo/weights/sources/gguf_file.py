"""Read the header of a GGUF file, and decode its blocks with the gguf package.

The header is parsed here because the gguf package takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, StoredTensor
from attngeo.weights.sources.checkpoint import FloatArray, TensorInfo
from attngeo.weights.sources.numbers import Bytes, Codec, float_codec, refusal

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_ARRAY = 4096  # items kept: lists per layer are shorter, vocabularies are longer and not needed

# Metadata key, without the architecture before it → the name that the configs of transformers use.
_CONFIG = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.causal": "is_causal",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "rope.dimension_count": "rotary_dim",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "swa_rope_theta",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
# The same for the numbers of a rotary scaling, whose keys begin with "rope.scaling.".
_SCALING = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


class _Cursor:
    """Reads a file from its beginning in growing pieces, so that a remote file costs few requests."""

    def __init__(self, file: ByteFile) -> None:
        self.file, self.at, self._data = file, 0, b""

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        stop = self.at + count
        if stop > len(self._data):
            if stop > self.file.size:
                raise SourceError(
                    f"{self.file.name}: ends at byte {self.file.size}, within the GGUF header; it is incomplete"
                )
            end = min(max(stop, 2 * len(self._data), 1 << 18), self.file.size)
            self._data += self.file.read(len(self._data), end)
        data = self._data[self.at : stop]
        self.at = stop
        return data

    def scalar(self, kind: int) -> Any:
        """Return the next number or truth value, of the GGUF type `kind`."""
        code = _SCALARS[kind]
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(int.from_bytes(self.take(8), "little")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return the next metadata value; arrays too long to be lists per layer are skipped and give None."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(kind)
        item, count = self.scalar(4), self.scalar(10)
        if item in _SCALARS and count > _LONGEST_ARRAY:
            self.take(count * struct.calcsize(_SCALARS[item]))
            return None
        if count > _LONGEST_ARRAY and item == _STRING:
            for _ in range(count):
                self.take(int.from_bytes(self.take(8), "little"))
            return None
        return [self.value(item) for _ in range(count)]


def read_gguf(file: ByteFile) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Return the tensors of one GGUF file, with shapes [out, in] as in torch, and a config made from its metadata."""
    cursor = _Cursor(file)
    if file.size < 24 or cursor.take(4) != b"GGUF":
        raise SourceError(f"{file.name}: does not begin with 'GGUF', expected a GGUF file")
    version = cursor.scalar(4)
    if version not in (2, 3):
        raise SourceError(f"{file.name}: has GGUF version {version}, expected 2 or 3 (little-endian)")
    tensor_count, value_count = cursor.scalar(10), cursor.scalar(10)
    metadata = {}
    try:
        for _ in range(value_count):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.scalar(4))
        table = [_table_entry(cursor) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        begin = -(-cursor.at // alignment) * alignment
        tensors = {name: _stored_tensor(file, name, shape, kind, begin + offset) for name, shape, kind, offset in table}
        return tensors, _config(metadata) | _rope_divisors(tensors)
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise SourceError(f"{file.name}: the GGUF header is damaged before byte {cursor.at}") from error


def _rope_divisors(tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Return the numbers by which the frequencies of rotary embedding are divided, where the file has them."""
    if "rope_factors_short.weight" in tensors:  # with an attention factor and other numbers for long texts: not proved
        return {"rope_scaling": {"rope_type": "longrope"}}
    stored = tensors.get("rope_freqs.weight")
    if stored is None or stored.info.dtype != "F32" or math.prod(stored.info.shape) > _LONGEST_ARRAY:
        return {}
    divisors = np.frombuffer(stored.file.read(stored.start, stored.stop), "<f4").tolist()
    return {"rope_scaling": {"rope_type": "divided", "divisors": divisors}}


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, axes = cursor.string(), cursor.scalar(4)
    shape = tuple(cursor.scalar(10) for _ in range(axes))[::-1]  # GGUF counts the fastest axis first
    return name, shape, cursor.scalar(4), cursor.scalar(10)


def _stored_tensor(file: ByteFile, name: str, shape: tuple[int, ...], kind: int, start: int) -> StoredTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        quantization = GGMLQuantizationType(kind)
        values, unit = GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise SourceError(
            f"{file.name}: tensor {name!r} has GGUF type {kind}, which the gguf package does not know"
        ) from error
    stop = start + math.prod(shape) // values * unit
    if stop > file.size:
        raise SourceError(
            f"{file.name}: tensor {name!r} ends at byte {stop}, but the file has {file.size}; it is incomplete"
        )
    info = TensorInfo(name, shape, quantization.name, file.name)
    codec = _codec(quantization, values, unit)
    return StoredTensor(info, file, start, stop, codec, "" if codec else refusal(quantization.name, None))


def _codec(quantization: Any, values: int, unit: int) -> Codec | None:
    from gguf import quants

    if quantization not in quants._type_traits:  # plain floats; integers, and types that gguf writes but cannot read
        return float_codec(quantization.name)

    def decode(raw: Bytes, out: FloatArray) -> None:
        with np.errstate(all="ignore"):  # a NaN scale is reported by the check that follows
            np.copyto(out, quants.dequantize(raw[None], quantization)[0])  # as one row, because gguf loops over rows

    return Codec(unit, values, decode)


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the names of transformers, and all metadata but the tokenizer under "gguf"."""
    arch = str(metadata.get("general.architecture", "unknown"))
    config: dict[str, Any] = {"model_type": f"gguf:{arch}"}
    for key, name in _CONFIG.items():
        if (value := metadata.get(f"{arch}.{key}")) is not None:
            config[name] = value
    # The first GGUF files have a factor under an older name; without a type, llama.cpp scales linearly.
    factor = metadata.get(f"{arch}.rope.scaling.factor") or metadata.get(f"{arch}.rope.scale_linear")
    scaling = metadata.get(f"{arch}.rope.scaling.type", "linear" if factor else "none")
    if scaling != "none":
        more = {name: metadata.get(f"{arch}.rope.scaling.{key}") for key, name in _SCALING.items()}
        config["rope_scaling"] = {"rope_type": scaling, "factor": factor} | {
            k: v for k, v in more.items() if v is not None
        }
    if isinstance(windows := config.get("sliding_window_pattern"), list):  # a truth value per layer, not a period
        config["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    if "num_attention_heads" in config:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config["gguf"] = {
        key: value for key, value in metadata.items() if value is not None and not key.startswith("tokenizer.")
    }
    return config
