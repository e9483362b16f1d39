"""Read one layer's tensors and cut them into heads: numpy arrays, or torch tensors where a checkpoint gives those."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attngeo.errors import LayoutError
from attngeo.weights.layout.sites import Heads, Site
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo


def wants(site: Site, tensors: Mapping[str, TensorInfo]) -> list[ReadRequest]:
    """What `cut` is going to read, in order."""
    return [*_projections(site, tensors), *(ReadRequest(name) for name in site.gains if name is not None)]


def _projections(site: Site, tensors: Mapping[str, TensorInfo]) -> list[ReadRequest]:
    kind, heads = site.storage.kind, site.heads
    if kind == "latent":
        return [ReadRequest(name) for name in (*site.more.values(), site.query, site.key)]
    if kind == "separate" or (heads is None and kind == "key-value"):
        return [ReadRequest(site.query), ReadRequest(site.key)]
    if kind == "key-value":
        assert heads is not None
        return [ReadRequest(site.query), ReadRequest(site.key, ((0, heads.keys * heads.size),))]
    if kind == "blocks" and not site.storage.transposed:
        rows = tensors[site.query].shape[0]
        # the values follow the keys and are not read; without head counts q, k and v are equal thirds
        stop = (heads.queries + heads.keys) * heads.size if heads is not None else 2 * (rows // 3)
        return [ReadRequest(site.query, ((0, stop),))]
    return [ReadRequest(site.query)]


def cut(checkpoint: Checkpoint, site: Site, offset: bool) -> tuple[FloatArray, FloatArray]:
    """Queries [H, d, r] and keys [G, d, r] of one layer, QK-norm gains multiplied in (`offset`: gain = 1 + weight)."""
    read = {want.name: checkpoint.read(want) for want in wants(site, checkpoint.tensors)}
    if site.storage.kind == "latent":
        query, key = _latent(site, read)
    elif site.query != site.key:
        query, key = _apart(site, read[site.query], read[site.key])
    else:
        query, key = _fused(site, _matrix(site, read[site.query]))
    if query.shape[-1] != key.shape[-1]:
        raise LayoutError(
            f"{site.query} {list(query.shape)} and {site.key} {list(key.shape)}: query and key heads differ in size"
        )
    for name, side in zip(site.gains, (query, key), strict=True):
        if name is not None:
            _multiply(name, side, read[name] + 1 if offset else read[name])
    return query, key


def _matrix(site: Site, stored: FloatArray) -> FloatArray:
    """[out, in], however it is stored."""
    if site.storage.transposed:
        return stored.reshape(stored.shape[0], -1).T
    return stored.reshape(stored.shape[0], -1)  # 1×1 convolutions lose their kernel axes


def _heads(rows: FloatArray, count: int) -> FloatArray:
    """[count·r, d] → [count, d, r], a view."""
    return rows.reshape(count, -1, rows.shape[-1]).swapaxes(1, 2)


def _apart(site: Site, query: FloatArray, key: FloatArray) -> tuple[FloatArray, FloatArray]:
    query, key = _matrix(site, query), _matrix(site, key)  # [H·r, d], [G·r, d]
    if site.heads is None:
        return _heads(query, 1), _heads(key, 1)
    if site.gated:
        query = query.reshape(site.heads.queries, 2, site.heads.size, -1)[:, 0]  # [H, r, d]
        query = query.reshape(-1, query.shape[-1])
    return _heads(query, site.heads.queries), _heads(key, site.heads.keys)


def _fused(site: Site, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    heads = site.heads
    if heads is None:
        if site.storage.kind != "blocks":
            raise LayoutError(
                f"{site.query}: heads are interleaved, the head count is needed (num_heads / --num-heads)"
            )
        width = rows.shape[0] // (3 if site.storage.transposed else 2)
        return _heads(rows[:width], 1), _heads(rows[width : 2 * width], 1)
    if site.storage.kind == "blocks":
        split, stop = heads.queries * heads.size, (heads.queries + heads.keys) * heads.size
        return _heads(rows[:split], heads.queries), _heads(rows[split:stop], heads.keys)
    if site.storage.kind == "codegen":
        return _codegen(rows, heads)
    grouped = rows.reshape(heads.keys, heads.queries // heads.keys + 2, heads.size, -1)  # [G, H/G + 2, r, d]
    query = grouped[:, :-2].reshape(heads.queries, heads.size, -1)  # [H, r, d]
    return query.swapaxes(1, 2), grouped[:, -2].swapaxes(1, 2)


def _codegen(rows: FloatArray, heads: Heads) -> tuple[FloatArray, FloatArray]:
    parts = rows.reshape(4, 3, heads.queries // 4, heads.size, -1)  # [4, (q, v, k), H/4, r, d]
    query, key = (parts[:, i].reshape(heads.queries, heads.size, -1).swapaxes(1, 2) for i in (0, 2))
    return query, key


def _latent(site: Site, read: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Down- and up-projection multiplied out, the latent norms' gains between them; the rotary key repeats."""
    from array_api_compat import array_namespace, device

    assert site.heads is not None and site.scope is not None
    count, size, more = site.heads.queries, site.heads.size, site.more
    query: FloatArray = read[site.query]  # [H·r, d] or [H·r, q_rank]
    if "query_down" in more:
        gain, down = read[more["query_gain"]], read[more["query_down"]]  # [q_rank], [q_rank, d]
        _fits(site.query, query.shape, (count * size, len(gain)))
        _fits(more["query_down"], down.shape, (len(gain), down.shape[1]))
        query *= gain
        query = query @ down  # [H·r, d]
    up = read[site.key]  # [H·(nope + value), rank]
    rank = up.shape[1]
    down, rotary = read[more["key_down"]][:rank], read[more["key_down"]][rank:]  # [rank, d], [rope, d]
    plain = size - len(rotary)
    if plain <= 0 or len(up) % count or len(up) < count * plain or len(query) != count * size:
        raise LayoutError(
            f"{site.query} {list(query.shape)} and {site.key} {list(up.shape)}: not {count} latent heads of size {size}"
        )
    _fits(more["key_gain"], read[more["key_gain"]].shape, (rank,))
    up = up.reshape(count, -1, rank)[:, :plain] * read[more["key_gain"]]  # [H, nope, rank]
    xp = array_namespace(up)
    key: FloatArray = xp.empty((count, size, down.shape[1]), dtype=up.dtype, device=device(up))  # [H, r, d]
    for head, one in zip(key, up, strict=True):  # no second copy of all the keys
        head[:plain] = one @ down
    key[:, plain:] = rotary
    return _heads(query, count), key.swapaxes(1, 2)


def _fits(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise LayoutError(f"{name}: shape {list(shape)}, expected {list(expected)}")


def _multiply(name: str, side: FloatArray, gain: FloatArray) -> None:
    """side [heads, d, r] times a gain given per size [r], per head and size [heads·r], or [heads, r], in place."""
    heads, _, size = side.shape
    if math.prod(gain.shape) == size:
        side *= gain.reshape(1, 1, size)
    elif math.prod(gain.shape) == heads * size:
        side *= gain.reshape(heads, 1, size)
    else:
        raise LayoutError(f"{name}: shape {list(gain.shape)}, expected {size} or {heads}×{size} gains")
