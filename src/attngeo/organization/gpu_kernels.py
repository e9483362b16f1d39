"""GPU kernels written in Triton: l1 distances between points, and the plane rotations of the Haar transform.

torch has no fast operation for either: torch.cdist reads both points again for each pair, and with torch's own
operations each round of independent rotations is a separate launch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attngeo.arrays import Floats, Ints

if TYPE_CHECKING:
    import torch

# Imported by name, because Triton is installed with torch only on machines with a GPU.
triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

SIDE = 32  # rows and columns of a tile
PROGRAMS = 16384  # enough programs to occupy the whole GPU
COLUMNS = 128  # columns per program, one per thread


@triton.jit  # type: ignore[untyped-decorator]
def _tile(a, b, parts, rows, columns, length, span, half: tl.constexpr, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set parts[split, i, j] = Σ_k |a[k, i] − b[k, j]| over the coordinates k of one split, for one tile of i and j.

    a: [length, rows], b: [length, columns], parts: [splits, rows, columns]; a split has `span` coordinates.
    """
    if half:  # noqa: SIM102 (`half` is decided when the kernel is compiled, the other condition when it runs)
        if tl.program_id(1) < tl.program_id(0):
            return  # this tile is the mirror image of another
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


def l1_tiles(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the [rows, columns] l1 distances between points a [k, rows] and b [k, columns], float64 on their device.

    Coordinates are the first axis, so that neighbouring threads read neighbouring numbers. If a is b, only the tiles
    from the diagonal up are filled.
    """
    import torch

    half = a is b
    (length, rows), columns = a.shape, b.shape[1]
    tiles = triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE)
    # Partial sums over coordinates are added in an order that depends only on the shape, so every run gives the same
    # digits.
    splits = max(1, min(PROGRAMS // (tiles[0] * tiles[1]), length // 64))
    parts = torch.zeros(splits, rows, columns, dtype=torch.float64, device=a.device)
    _tile[(*tiles, splits)](a, b, parts, rows, columns, length, triton.cdiv(length, splits), half, SIDE)
    return parts.sum(0)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(data, first, second, cosine, sine, count, n, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply `count` rotations in order to rows of data [outer, n, inner] in place; each program has its own columns."""
    blocks = tl.cdiv(inner, COLUMNS)
    block = tl.program_id(0).to(tl.int64)
    j = block % blocks * COLUMNS + tl.arange(0, COLUMNS)
    column = data + block // blocks * n * inner + j
    for step in range(0, count):
        c, s = tl.load(cosine + step), tl.load(sine + step)
        p, q = column + tl.load(first + step) * inner, column + tl.load(second + step) * inner
        u, v = tl.load(p, mask=j < inner, other=0.0), tl.load(q, mask=j < inner, other=0.0)
        tl.store(p, c * u - s * v, mask=j < inner)
        tl.store(q, c * v + s * u, mask=j < inner)
        tl.debug_barrier()  # the next step may read what this one wrote


def rotated(flat: torch.Tensor, first: Ints, second: Ints, cosine: Floats, sine: Floats, source: Ints) -> torch.Tensor:
    """Return flat [outer, n, inner] after rotating the rows (first[k], second[k]), k = 0, 1, …, in that order.

    Row i of the result is row source[i] after the rotations.
    """
    import torch

    outer, n, inner = flat.shape
    # Neighbouring threads should read neighbouring numbers: where `inner` is short, `outer` becomes the last axis.
    across = inner < 32 < outer
    work = flat.transpose(0, 1).reshape(1, n, outer * inner) if across else flat
    work = work.clone(memory_format=torch.contiguous_format)
    rows = [torch.as_tensor(x.copy(), device=flat.device) for x in (first, second)]
    angles = [torch.as_tensor(x.copy(), dtype=flat.dtype, device=flat.device) for x in (cosine, sine)]
    grid = (work.shape[0] * triton.cdiv(work.shape[2], COLUMNS),)
    _rotate[grid](work, *rows, *angles, len(first), n, work.shape[2], COLUMNS)
    work = work.index_select(1, torch.as_tensor(source.copy(), device=flat.device))
    return work.reshape(n, outer, inner).transpose(0, 1).contiguous() if across else work
