"""Make checkpoints for the tests, byte by byte, so that they may break rules that the official writer enforces."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SAFETENSORS_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8",
    "int32": "I32", "int64": "I64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip

LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Return standard normal entries, rounded to `dtype`, which may be any float type."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def llama_like_tensors(layers: int = 3, width: int = 64, dtype: Any = ml_dtypes.bfloat16) -> dict[str, Array]:
    """Return the tensors of a LLaMA-like model, in the order of real files (by name)."""
    tensors = {"model.embed_tokens.weight": normal(100, width, dtype=dtype)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for seed, (name, rows) in enumerate({"k": width // 2, "o": width, "q": width, "v": width // 2}.items()):
            weight = normal(rows, width, seed=10 * layer + seed, dtype=dtype)
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = weight
        tensors[f"{prefix}.mlp.up_proj.weight"] = normal(2 * width, width, seed=layer, dtype=dtype)
    return tensors


def safetensors_bytes(tensors: Mapping[str, Array]) -> bytes:
    """Return a safetensors file with the tensors in the order given."""
    entries: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        content = array.tobytes()
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    return with_header(json.dumps(entries).encode(), data)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """Return the length of the header, the header and the data, whatever the header contains."""
    return struct.pack("<Q", len(header)) + header + data


def write_files(folder: Path, files: Mapping[str, bytes | Mapping[str, Any]]) -> Path:
    """Write files into a new folder, mappings as JSON; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Array], architecture: str = "llama") -> bytes:
    """Return a GGUF file by the official writer; keys of the metadata lack the architecture before them."""
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(2)
        writer.add_embedding_length(64)
        for key, value in metadata.items():
            add = {list: writer.add_array, str: writer.add_string, float: writer.add_float64}
            add.get(type(value), writer.add_uint32)(f"{architecture}.{key}", value)
        for name, array in tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()
