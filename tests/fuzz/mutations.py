"""Seeded mutations of file contents: of plain bytes, and of JSON documents.

Every function takes a `random.Random` first and returns new content; the same generator state gives the same result.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

EXTREMES = (0, 1, 2, 3, 7, 255, 256, 65_535, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)


def mutate_bytes(rng: Random, data: bytes, header: int | None = None) -> bytes:
    """Return `data` with one to five random defects.

    header: the number of leading bytes that most defects hit; without it they are spread over the whole content.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        reach = min(header, len(data)) if header and rng.random() < 0.8 else len(data)
        data = rng.choice(_BYTE_DEFECTS)(rng, data, reach)
    return data


def _flip_bits(rng: Random, data: bytes, reach: int) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32)) if reach else 0):
        changed[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncate(rng: Random, data: bytes, reach: int) -> bytes:
    return data[: rng.randrange(reach + 1)]


def _insert(rng: Random, data: bytes, reach: int) -> bytes:
    at, size = rng.randrange(reach + 1), rng.choice((1, 2, 8, 100, 5000))
    new = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size), b"[" * size, b'"' * size, b"\n" * size))
    return data[:at] + new + data[at:]


def _remove(rng: Random, data: bytes, reach: int) -> bytes:
    start, stop = _chunk(rng, data, reach)
    return data[:start] + data[stop:]


def _duplicate(rng: Random, data: bytes, reach: int) -> bytes:
    start, stop = _chunk(rng, data, reach)
    return data[:stop] + data[start:]


def _overwrite(rng: Random, data: bytes, reach: int) -> bytes:
    start, stop = _chunk(rng, data, reach)
    new = rng.choice((bytes(stop - start), b"\xff" * (stop - start), rng.randbytes(stop - start)))
    return data[:start] + new + data[stop:]


def _overwrite_integer(rng: Random, data: bytes, reach: int) -> bytes:
    """Put an extreme count, length or offset somewhere; many formats store them as little-endian integers."""
    width, code = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    at = rng.randrange(max(reach - width, 0) + 1)
    return data[:at] + struct.pack(code, rng.choice(EXTREMES) % (1 << 8 * width)) + data[at + width :]


def _append(rng: Random, data: bytes, reach: int) -> bytes:
    return data + rng.randbytes(rng.choice((1, 8, 1000)))


def _chunk(rng: Random, data: bytes, reach: int) -> tuple[int, int]:
    start = rng.randrange(reach + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 1024)))


_BYTE_DEFECTS: tuple[Callable[[Random, bytes, int], bytes], ...] = (
    _flip_bits,
    _flip_bits,
    _truncate,
    _insert,
    _remove,
    _duplicate,
    _overwrite,
    _overwrite_integer,
    _overwrite_integer,
    _append,
)


class RawText(str):
    """Text that stands in a JSON or TOML document as it is, valid or not."""


STRANGE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 5, 7, 64, -1, -7, 1 << 31, 1 << 53, 1 << 62, 1 << 63, 1 << 64,
    10**30, -(10**30), 10**400, 0.5, -0.5, 1e-300, 1e308, -1e308,
    RawText("NaN"), RawText("Infinity"), RawText("-Infinity"), RawText("1e999"), RawText("9" * 5000),
    "", "a", "0", "x" * 300, "x" * 5000, "a\0b", "a\nb", "a\r\nb\x1b[31m", "\ud800", "\u202e", "é" * 200,
    "../x", "/etc/hosts", ".",
    [], {}, [[]], [None], [0], [1, 2], [-1], ["a"], {"a": 1}, {"": {}}, [1 << 62, 1 << 62], [0] * 1000, [1] * 40,
    RawText("[" * 100_000), RawText("[" * 3000 + "]" * 3000), RawText('{"a":' * 50_000), RawText("\udcff\udcfe"),
    RawText("[1,]"), RawText("tru"), RawText("'a'"),
)  # fmt: skip


def strange_value(rng: Random) -> Any:
    """Return a JSON value of an unexpected type or size, or text that is not JSON at all."""
    return rng.choice(STRANGE_VALUES)


def mutate_json(rng: Random, value: Any) -> bytes:
    """Return the document `value` as UTF-8 JSON with one to four wrong values, or (one time in five) wrong bytes."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, encode_json(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _mutate_node(rng, value)
    return encode_json(value)


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON; `RawText` is written verbatim, and `Pairs` become objects with duplicate keys."""
    raws: list[str] = []

    def prepare(node: Any) -> Any:
        if isinstance(node, RawText):
            raws.append(node)
            return f"@raw {len(raws) - 1}@"
        if isinstance(node, Pairs):
            raws.append("{" + ", ".join(f"{json.dumps(key)}: {_text(inner)}" for key, inner in node.pairs) + "}")
            return f"@raw {len(raws) - 1}@"
        if isinstance(node, Mapping):
            return {str(key): prepare(inner) for key, inner in node.items()}
        if isinstance(node, list | tuple):
            return [prepare(inner) for inner in node]
        return node

    text = json.dumps(prepare(value))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw {number}@"', raw)
    return text.encode("utf-8", "surrogateescape")


def _text(value: Any) -> str:
    return encode_json(value).decode("utf-8", "surrogateescape")


class Pairs:
    """A JSON object whose keys may occur more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _mutate_node(rng: Random, value: Any) -> Any:
    """Return a copy of a JSON value in which one node, at a random depth, is wrong."""
    if isinstance(value, Mapping) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.7:
            return {**value, key: _mutate_node(rng, value[key])}
        kind = rng.randrange(6)
        if kind == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if kind == 1:
            name = rng.choice(["", "x" * 300, "a\0b", "\ud800", "a\nb", "__metadata__", key + "0", key[:-1]])
            return {(name if own == key else own): inner for own, inner in value.items()}
        if kind == 2:
            return Pairs([*value.items(), (key, strange_value(rng))])
        if kind == 3:
            return {**value, key: rng.choice(list(value.values()))}
        if kind == 4:
            return {**value, f"new {rng.randrange(3)}": strange_value(rng)}
        return strange_value(rng)
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        if rng.random() < 0.6:
            return [*value[:at], _mutate_node(rng, value[at]), *value[at + 1 :]]
        return rng.choice(([*value[:at], *value[at + 1 :]], [*value, value[at]], value[::-1], strange_value(rng)))
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, 2 * value, -value, value // 2, str(value), value * (1 << 40)))
    return strange_value(rng)
