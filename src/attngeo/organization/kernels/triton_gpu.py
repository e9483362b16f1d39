"""What torch has no fast way for on a GPU: l1 distances in tiles held in registers, Haar rotations in one launch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# By name: triton comes with torch where there is a GPU, and nowhere else.
triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

SIDE = 32  # rows and columns of a tile
PROGRAMS = 16384  # enough to keep every part of a GPU busy
COLUMNS = 128  # turned by one program, a thread each


@triton.jit  # type: ignore[untyped-decorator]
def _tile(a, b, parts, rows, columns, length, span, half: tl.constexpr, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """parts [splits, rows, columns]: Σ |a[k, i] − b[k, j]| over the coordinates of one split; a is [length, rows]."""
    if half:  # noqa: SIM102 (decided when compiled; the other when run)
        if tl.program_id(1) < tl.program_id(0):
            return  # the mirror image of a tile that is done
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]  # [SIDE, 1]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]  # [1, SIDE]
    split = tl.program_id(2).to(tl.int64)
    first = split * span
    x, y = a + first * rows + i, b + first * columns + j
    total = tl.zeros((SIDE, SIDE), tl.float64)
    for _ in range(0, tl.minimum(span, length - first)):
        total += tl.abs(tl.load(x, mask=i < rows, other=0.0) - tl.load(y, mask=j < columns, other=0.0))
        x += rows
        y += columns
    tl.store(parts + (split * rows + i) * columns + j, total, mask=(i < rows) & (j < columns))


def l1_tiles(a: Any, b: Any) -> Any:
    """[rows, columns] l1 distances between points a [k, rows] and b [k, columns], float64 on their device.

    Coordinates outermost, so that neighbouring threads read neighbouring numbers. Where a is b only the upper half is
    filled, the tiles of the diagonal in full.
    """
    import torch

    half = a is b
    (length, rows), columns = a.shape, b.shape[1]
    tiles = triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE)
    # Partial sums over coordinates, added in an order that follows from the shape: the same digits on every run.
    splits = max(1, min(PROGRAMS // (tiles[0] * tiles[1]), length // 64))
    parts = torch.zeros(splits, rows, columns, dtype=torch.float64, device=a.device)
    _tile[(*tiles, splits)](a, b, parts, rows, columns, length, triton.cdiv(length, splits), half, SIDE)
    return parts.sum(0)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(data, first, second, cosine, sine, count, n, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate rows of data [outer, n, inner] in place, one pair after another; every program has columns of its own."""
    blocks = tl.cdiv(inner, COLUMNS)
    place = tl.program_id(0).to(tl.int64)
    j = place % blocks * COLUMNS + tl.arange(0, COLUMNS)
    column = data + place // blocks * n * inner + j
    for step in range(0, count):
        c, s = tl.load(cosine + step), tl.load(sine + step)
        p, q = column + tl.load(first + step) * inner, column + tl.load(second + step) * inner
        u, v = tl.load(p, mask=j < inner, other=0.0), tl.load(q, mask=j < inner, other=0.0)
        tl.store(p, c * u - s * v, mask=j < inner)
        tl.store(q, c * v + s * u, mask=j < inner)
        tl.debug_barrier()  # what one step wrote, the next may read


def rotated(flat: Any, first: Any, second: Any, cosine: Any, sine: Any, found: Any) -> Any:
    """flat [outer, n, inner] with rows `first`, `second` turned in order, row i of the result being row found[i]."""
    import torch

    outer, n, inner = flat.shape
    across = inner < 32 < outer  # neighbouring threads are to read neighbouring numbers
    work = flat.transpose(0, 1).reshape(1, n, outer * inner) if across else flat
    work = work.clone(memory_format=torch.contiguous_format)
    rows = [torch.as_tensor(x.copy(), device=flat.device) for x in (first, second)]
    turns = [torch.as_tensor(x.copy(), dtype=flat.dtype, device=flat.device) for x in (cosine, sine)]
    grid = (work.shape[0] * triton.cdiv(work.shape[2], COLUMNS),)
    _turn[grid](work, *rows, *turns, len(first), n, work.shape[2], COLUMNS)
    work = work.index_select(1, torch.as_tensor(found.copy(), device=flat.device))
    return work.reshape(n, outer, inner).transpose(0, 1).contiguous() if across else work
