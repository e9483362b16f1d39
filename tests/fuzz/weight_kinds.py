"""Checkpoints: safetensors files, their index and config, GGUF files, pickles, adapters."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.containers import mutate_safetensors, mutate_zip, strange_array, strange_tensors
from tests.fuzz.kinds import Files, Kind, mutate_one
from tests.fuzz.mutations import mutate_bytes, mutate_json, strange_value
from tests.weights.made_checkpoints import LLAMA_CONFIG, Array, llama_like_tensors, normal, safetensors_bytes

WIDTH = 64


def read_checkpoint(name: str | None, rng: Random, folder: Path, out: Path) -> None:
    """Score the checkpoint, as a folder or by the name of its file."""
    import attngeo

    ref = folder if name is None or rng.random() < 0.7 else folder / name
    options: dict[str, Any] = {"nulls": rng.random() < 0.2, "folded": rng.choice((None, True, False)),
                               "unproven": rng.random() < 0.5, "heads": rng.random() < 0.9}  # fmt: skip
    table = attngeo.score(ref, **options)
    assert len(table) > 0
    repr(table)
    table.summary()


def llama_with_norms(layers: int = 2) -> dict[str, Array]:
    tensors = llama_like_tensors(layers, WIDTH, np.float32)
    for layer in range(layers):
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = normal(WIDTH, seed=layer)
    return tensors


def _layouts() -> dict[str, tuple[dict[str, Any], dict[str, Array]]]:
    """Return config and tensors of one small model per way of storing queries and keys."""
    common = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    gpt2, neox, phi3, bert, mla = {}, {}, {}, {}, {}
    for layer in range(2):
        gpt2[f"h.{layer}.attn.c_attn.weight"] = normal(WIDTH, 3 * WIDTH, seed=layer)
        gpt2[f"h.{layer}.ln_1.weight"] = normal(WIDTH, seed=layer)
        neox[f"gpt_neox.layers.{layer}.attention.query_key_value.weight"] = normal(3 * WIDTH, WIDTH, seed=layer)
        phi3[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = normal(2 * WIDTH, WIDTH, seed=layer)
        for name in ("query", "key", "value"):
            bert[f"bert.encoder.layer.{layer}.attention.self.{name}.weight"] = normal(WIDTH, WIDTH, seed=layer)
        attention = f"model.layers.{layer}.self_attn"
        mla[f"{attention}.q_proj.weight"] = normal(4 * 24, WIDTH, seed=layer)
        mla[f"{attention}.kv_a_proj_with_mqa.weight"] = normal(32 + 8, WIDTH, seed=layer)
        mla[f"{attention}.kv_a_layernorm.weight"] = normal(32, seed=layer)
        mla[f"{attention}.kv_b_proj.weight"] = normal(4 * (16 + 16), 32, seed=layer)
    latent = {"kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    return {
        "llama": ({**LLAMA_CONFIG, "num_hidden_layers": 2, "rope_scaling": None}, llama_with_norms()),
        "gpt2": ({"model_type": "gpt2", "n_embd": WIDTH, "n_layer": 2, "n_head": 4}, gpt2),
        "gpt_neox": ({"model_type": "gpt_neox", **common}, neox),
        "phi3": ({"model_type": "phi3", **common, "num_key_value_heads": 2}, phi3),
        "bert": ({"model_type": "bert", **common}, bert),
        "deepseek": ({"model_type": "deepseek_v2", **common, **latent}, mla),
    }


@cache
def layouts() -> dict[str, Files]:
    return {
        name: {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_bytes(tensors)}
        for name, (config, tensors) in _layouts().items()
    }


def _mutate_layout(rng: Random, _: Files) -> Files:
    """Damage config or weights of one layout, or both."""
    files = dict(rng.choice(list(layouts().values())))
    if rng.random() < 0.7:
        files["config.json"] = mutate_json(rng, json.loads(files["config.json"]))
    else:
        files["model.safetensors"] = mutate_safetensors(rng, files["model.safetensors"])
    return files


def _mutate_config(rng: Random, files: Files) -> Files:
    """Damage a config with the sub-configs and settings that layouts look into."""
    config = json.loads(files["config.json"]) | {
        "text_config": {"model_type": "llama", "num_attention_heads": 4},
        "vision_config": {"num_heads": 2},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default"},
        "torch_dtype": "float32",
    }
    keep = [*rng.sample(list(config), rng.randrange(1, len(config) + 1)), "model_type", "num_attention_heads"]
    return {**files, "config.json": mutate_json(rng, {key: config[key] for key in dict.fromkeys(keep)})}


@cache
def sharded() -> Files:
    """Two shards, their index, and a config."""
    tensors = llama_with_norms()
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    weight_map = {tensor: names[".layers.1." in tensor] for tensor in tensors}
    shards = {
        name: safetensors_bytes({key: value for key, value in tensors.items() if weight_map[key] == name})
        for name in names
    }
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return {"config.json": json.dumps(LLAMA_CONFIG).encode(), **shards,
            "model.safetensors.index.json": json.dumps(index).encode()}  # fmt: skip


def _mutate_index(rng: Random, files: Files) -> Files:
    name = "model.safetensors.index.json"
    index = json.loads(files[name])
    if rng.random() < 0.5:
        shard = rng.choice(("", ".", "..", "x" * 300, "a/" * 3000 + "x", "a\0b", "a\nb", "\ud800", "C:x",
                            "config.json", name, "no/such", " ", "é" * 200, 7, None, []))  # fmt: skip
        index["weight_map"][rng.choice(list(index["weight_map"]))] = shard
        return {**files, name: json.dumps(index).encode()}
    return {**files, name: mutate_json(rng, index)}


def _fp8_files() -> Files:
    """An FP8 checkpoint with one scale per block."""
    import ml_dtypes

    tensors: dict[str, Array] = {}
    for name, rows in (("q", 64), ("k", 32)):
        weight = f"model.layers.0.self_attn.{name}_proj.weight"
        tensors[weight] = normal(rows, WIDTH, dtype=ml_dtypes.float8_e4m3fn)
        tensors[f"{weight}_scale_inv"] = np.abs(normal(rows // 16, WIDTH // 16)) + 1
    config = {**LLAMA_CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_bytes(tensors)}


def _mutate_fp8(rng: Random, files: Files) -> Files:
    data = files["model.safetensors"]
    if rng.random() < 0.4:
        return {**files, "config.json": mutate_json(rng, json.loads(files["config.json"]))}
    if rng.random() < 0.5:
        tensors: dict[str, Array] = {}
        for name, rows in (("q", 64), ("k", 32)):
            import ml_dtypes

            weight = f"model.layers.0.self_attn.{name}_proj.weight"
            tensors[weight] = normal(rows, WIDTH, dtype=ml_dtypes.float8_e4m3fn)
            tensors[f"{weight}_scale_inv"] = strange_array(rng)
        return {**files, "model.safetensors": safetensors_bytes(tensors)}
    end = 8 + int.from_bytes(data[:8], "little")
    return {**files, "model.safetensors": mutate_bytes(rng, data, header=end)}


@cache
def gguf_files() -> Files:
    metadata = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16}
    return {"model.gguf": gguf_bytes({**metadata, "rope.dimension_count": 16}, gguf_tensors())}


def gguf_tensors() -> dict[str, Array]:
    tensors = {"token_embd.weight": normal(20, WIDTH)}
    for layer in range(2):
        for name, rows in (("attn_q", WIDTH), ("attn_k", WIDTH // 2), ("attn_norm", 0)):
            shape = (rows, WIDTH) if rows else (WIDTH,)
            tensors[f"blk.{layer}.{name}.weight"] = normal(*shape, seed=layer)
    return tensors


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, Array], architecture: str = "llama") -> bytes:
    """Return a GGUF file by the official writer."""
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(2)
        writer.add_embedding_length(WIDTH)
        for key, value in metadata.items():
            key = f"{architecture}.{key}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                (writer.add_uint64 if value > 0x7FFFFFFF else writer.add_int32)(key, value)
            elif isinstance(value, float):
                writer.add_float64(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, list) and value:
                writer.add_array(key, value)
        for name, array in tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _mutate_gguf(rng: Random, files: Files) -> Files:
    data = files["model.gguf"]
    kind = rng.randrange(3)
    if kind == 0:
        return {"model.gguf": mutate_bytes(rng, data, header=900)}
    if kind == 1:
        keys = ("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.q_lora_rank",
                "attention.kv_lora_rank", "attention.causal", "rope.dimension_count", "embedding_length")  # fmt: skip
        values = (
            0,
            1,
            3,
            4,
            7,
            -1,
            1 << 31,
            (1 << 63) - 1,
            0.5,
            True,
            "x",
            [0, 1],
            [4, 4],
            [1, 2, 3],
            ["a"],
            [0.5],
            [-1, -1],
        )
        metadata: dict[str, Any] = {"attention.head_count": 4, "attention.head_count_kv": 2}
        metadata |= {rng.choice(keys): rng.choice(values) for _ in range(rng.choice((1, 2)))}
        metadata.pop("embedding_length", None)
        return {
            "model.gguf": gguf_bytes(metadata, gguf_tensors(), rng.choice(("llama", "llama", "bert", "unknown", "")))
        }
    tensors = {
        name: array if array.ndim else array.reshape(1)
        for name, array in strange_tensors(rng, gguf_tensors()).items()
        if array.dtype != np.uint8 and array.size
    }
    try:
        return {"model.gguf": gguf_bytes({"attention.head_count": 4}, tensors)}
    except ValueError:  # the writer refuses some of them itself
        return {"model.gguf": mutate_bytes(rng, data)}


def pickle_bytes(content: object, *, zipped: bool = True) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@cache
def pickle_state() -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array.copy()) for name, array in llama_with_norms(1).items()}


@cache
def pickle_files(zipped: bool = True) -> Files:
    return {
        "config.json": json.dumps(LLAMA_CONFIG).encode(),
        "pytorch_model.bin": pickle_bytes(pickle_state(), zipped=zipped),
    }


def _mutate_pickle(rng: Random, files: Files) -> Files:
    import torch

    kind = rng.randrange(4)
    if kind == 0:
        legacy = pickle_files(False)["pytorch_model.bin"]
        return {**files, "pytorch_model.bin": mutate_bytes(rng, legacy, header=2000)}
    if kind < 3:
        mutate = partial(mutate_zip, mutate_entry=lambda rng, _, content: mutate_bytes(rng, content, header=500))
        return {**files, "pytorch_model.bin": mutate(rng, files["pytorch_model.bin"])}
    state: dict[Any, Any] = dict(pickle_state())
    name = rng.choice(list(state))
    weight = state[name]
    state[name] = rng.choice((
        weight.to(torch.complex64), weight.to(torch.int8), weight.to_sparse(), weight.to("meta"), weight[:0],
        weight[:1].expand(weight.shape), weight.T, weight.to(torch.float8_e4m3fn), weight * 1e-30, weight * 1e30,
        weight.bool(), torch.zeros(()), None, 3, "text", {"a": weight}, [weight], torch.nn.Parameter(weight),
        torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8), weight.half(), weight.double() * 1e200,
    ))  # fmt: skip
    if rng.random() < 0.3:
        state[rng.choice((3, None, ("a", "b"), "", "a\nb", b"x"))] = state.pop(name)
    wrapped = rng.choice((state, state, {"model": state}, {"state_dict": {"model": state}}, {"a": state}, list(state)))
    return {**files, "pytorch_model.bin": pickle_bytes(wrapped, zipped=rng.random() < 0.7)}


class _Settings:
    """Hyper-parameters of a class that no reader knows."""

    def __init__(self) -> None:
        self.rate = 1e-3


@cache
def lightning_files() -> Files:
    """A Lightning checkpoint, with hyper-parameters and the state of an optimiser beside the weights."""
    state = {f"model._orig_mod.{name}": value for name, value in pickle_state().items()}
    return {"config.json": json.dumps(LLAMA_CONFIG).encode(), "last.ckpt": pickle_bytes(_lightning_content(state))}


def _lightning_content(state: object) -> dict[str, Any]:
    import torch

    return {
        "epoch": 1,
        "state_dict": state,
        "hyper_parameters": {"settings": _Settings(), "path": Path("data")},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}}],
    }


def _mutate_lightning(rng: Random, files: Files) -> Files:
    if rng.random() < 0.7:
        mutate = partial(mutate_zip, mutate_entry=lambda rng, _, content: mutate_bytes(rng, content, header=500))
        return {**files, "last.ckpt": mutate(rng, files["last.ckpt"])}
    content = _lightning_content(dict(pickle_state()))
    key = rng.choice(list(content))
    content[key] = rng.choice((None, 3, [], {}, _Settings(), {"a": _Settings()}, content["state_dict"], content))
    if rng.random() < 0.5:
        prefix = rng.choice(("module.", "_orig_mod.", "module.module.", ".", "_orig_mod"))
        state = dict(pickle_state())
        content["state_dict"] = state | {f"{prefix}{name}": value for name, value in state.items()}
    return {**files, "last.ckpt": pickle_bytes(content, zipped=rng.random() < 0.8)}


def _adapter_files() -> Files:
    weights = {
        "base_model.model.q_proj.lora_A.weight": normal(2, 8),
        "base_model.model.q_proj.lora_B.weight": normal(8, 2),
    }
    config = {"base_model_name_or_path": "org/name", "peft_type": "LORA"}
    return {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": safetensors_bytes(weights)}


def _mutate_adapter(rng: Random, files: Files) -> Files:
    if rng.random() < 0.3:
        return {"model.safetensors": files["adapter_model.safetensors"]}
    config = json.loads(files["adapter_config.json"]) | {"base_model_name_or_path": strange_value(rng)}
    return {**files, "adapter_config.json": mutate_json(rng, config)}


def _read_adapter(rng: Random, folder: Path, out: Path) -> None:
    import attngeo
    from attngeo.errors import SourceError

    try:
        attngeo.score(folder)
    except SourceError as error:
        if "adapter" not in str(error):
            raise


KINDS = (
    Kind("layout", lambda: layouts()["llama"], _mutate_layout, partial(read_checkpoint, "model.safetensors")),
    Kind(
        "safetensors",
        lambda: layouts()["llama"],
        mutate_one(mutate_safetensors, "model.safetensors"),
        partial(read_checkpoint, "model.safetensors"),
    ),
    Kind("index", sharded, _mutate_index, partial(read_checkpoint, "model.safetensors.index.json")),
    Kind("config", lambda: layouts()["llama"], _mutate_config, partial(read_checkpoint, None)),
    Kind("fp8", cache(_fp8_files), _mutate_fp8, partial(read_checkpoint, None)),
    Kind("gguf", gguf_files, _mutate_gguf, partial(read_checkpoint, "model.gguf")),
    Kind("pickle", pickle_files, _mutate_pickle, partial(read_checkpoint, "pytorch_model.bin")),
    Kind("lightning", lightning_files, _mutate_lightning, partial(read_checkpoint, "last.ckpt")),
    Kind("adapter", cache(_adapter_files), _mutate_adapter, _read_adapter),
)
