"""Mutations that know the inside of a container: safetensors headers, zip entries, .npy headers."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutations import EXTREMES, encode_json, mutate_bytes, mutate_json
from tests.weights.made_checkpoints import Array, safetensors_bytes, with_header

MAGNITUDES = (0.0, 1e-45, 1e-38, 1e-30, 1e-23, 1e-20, 1e-10, 1e10, 1e19, 1e30, 3e38)
SHAPES = ((), (0,), (1,), (64,), (0, 64), (64, 0), (1, 1), (1, 64), (64, 1), (3, 5), (63, 64), (2, 3, 4), (64, 64, 1),
          (1, 1, 1, 1, 1), (32, 64), (128, 64))  # fmt: skip
DTYPES = (np.float64, np.float32, np.float16, np.int8, np.uint8, np.int64)


def mutate_safetensors(rng: Random, data: bytes) -> bytes:
    """Return a safetensors file with damaged bytes, a wrong header, or valid tensors nobody expects."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    kind = rng.randrange(10)
    if kind < 2:
        return mutate_bytes(rng, data, header=end)
    if kind < 6:
        return with_header(mutate_json(rng, header), data[end:])
    if kind == 6:  # offsets that exist, of another tensor
        name, other = (rng.choice([key for key in header if key != "__metadata__"]) for _ in range(2))
        entry = {**header[name], "data_offsets": header[other]["data_offsets"]}
        return with_header(encode_json({**header, name: entry}), data[end:])
    return safetensors_bytes(strange_tensors(rng, _tensors(header, data[end:])))


def _tensors(header: Mapping[str, Any], data: bytes) -> dict[str, Array]:
    dtypes = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def strange_tensors(rng: Random, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return tensors some of which have extreme values, another shape, another type or another name."""
    changed = dict(tensors)
    with np.errstate(all="ignore"):
        if rng.random() < 0.5:  # squares that underflow or overflow, in all tensors or in one
            factor = rng.choice(MAGNITUDES)
            chosen = list(changed) if rng.random() < 0.5 else [rng.choice(list(changed))]
            for name in chosen:
                changed[name] = (changed[name] * factor).astype(changed[name].dtype)
            return changed
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(list(changed))
            kind = rng.randrange(6)
            if kind == 0:
                changed[name] = strange_array(rng)
            elif kind == 1:
                changed[name] = changed[name].astype(rng.choice(DTYPES))
            elif kind == 2:
                del changed[name]
                if not changed:
                    break
            elif kind == 3:
                parts = name.split(".")
                parts[rng.randrange(len(parts))] = rng.choice(
                    ("0", "1", "99", "10000000000000000000000", "", "q", "qkv")
                )
                changed[".".join(parts)] = changed.pop(name)
            elif kind == 4:
                flat = changed[name].copy().reshape(-1)
                if flat.size and flat.dtype.kind == "f":
                    flat[rng.randrange(flat.size)] = rng.choice((np.nan, np.inf, -np.inf))
                changed[name] = flat.reshape(changed[name].shape)
            else:
                changed[name] = changed[name][: rng.choice((0, 1, 3))] if changed[name].ndim else changed[name]
    return changed


def strange_array(rng: Random) -> Array:
    """Return a small array of an unexpected shape and type."""
    shape = rng.choice(SHAPES)
    values = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape)
    return np.asarray(values * rng.choice((1.0, 1.0, 1.0, *MAGNITUDES))).astype(rng.choice(DTYPES))


def mutate_zip(rng: Random, data: bytes, mutate_entry: Callable[[Random, str, bytes], bytes]) -> bytes:
    """Return a zip archive with damaged bytes, or rebuilt with wrong entries."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    for at in sorted(rng.sample(range(len(entries)), min(len(entries), rng.choice((1, 1, 1, 2)))), reverse=True):
        name, content = entries[at]
        kind = rng.randrange(8)
        if kind == 0:
            del entries[at]
        elif kind == 1:
            entries[at] = (rng.choice(("x", "../x.npy", name * 2, name[:-1], "about.npy", "values.npy")), content)
        elif kind == 2:
            entries[at] = (name, rng.choice(entries)[1])
        else:
            entries[at] = (name, mutate_entry(rng, name, content))
    stored = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(stored, "w", method) as archive:
        for name, content in dict(entries).items():
            archive.writestr(name, content)
    return stored.getvalue()


def mutate_npy(rng: Random, _: str, data: bytes) -> bytes:
    """Return an .npy file with damaged bytes, a wrong header, or an array nobody expects."""
    kind = rng.randrange(5)
    if kind == 0:
        return mutate_bytes(rng, data, header=128)
    array = np.load(io.BytesIO(data))
    if kind == 1:
        return npy_bytes(strange_array(rng))
    if kind == 2:
        others = [array[None], array.T, array * 0, array.reshape(-1)[:1], array.astype(rng.choice(DTYPES))]
        others += [array[:0]] if array.ndim else []
        others += [-array] if array.dtype != bool else []
        return npy_bytes(np.asarray(rng.choice(others)))
    if kind == 3 and array.dtype.kind == "f" and array.size:
        changed = array.copy()
        with np.errstate(all="ignore"):
            if rng.random() < 0.5:
                changed *= rng.choice((*MAGNITUDES, 1e300))
            else:
                changed.reshape(-1)[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, 1e38, -1.0, 1e-300))
        return npy_bytes(changed)
    size = rng.choice(EXTREMES)
    header = {
        "descr": rng.choice(
            ("|O", "<f8", "<f4", ">f8", "<U1000", "|S5", "<M8[ns]", "<c16", "|V8", [("a", "<i4")], "x", 3)
        ),
        "fortran_order": rng.choice((True, False, None)),
        "shape": rng.choice((array.shape, (size,), (size, size), (-1,), (size, 1, 0), "x", None, (1.5,))),
    }
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()


def npy_bytes(array: Array) -> bytes:
    """Return an array as numpy saves it."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def mutate_npz(rng: Random, data: bytes) -> bytes:
    """Return an archive of `attngeo.io.archive` with damaged arrays, or with a wrong JSON description."""

    def mutate_entry(rng: Random, name: str, content: bytes) -> bytes:
        if name == "about.npy" and rng.random() < 0.8:
            text = np.load(io.BytesIO(content)).tobytes()
            return npy_bytes(np.frombuffer(mutate_json(rng, json.loads(text)), np.uint8))
        return mutate_npy(rng, name, content)

    if rng.random() < 0.3:  # the JSON description alone
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        text = np.load(io.BytesIO(entries["about.npy"])).tobytes()
        entries["about.npy"] = npy_bytes(np.frombuffer(mutate_json(rng, json.loads(text)), np.uint8))
        stored = io.BytesIO()
        with zipfile.ZipFile(stored, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        return stored.getvalue()
    return mutate_zip(rng, data, mutate_entry)
