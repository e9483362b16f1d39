"""l1 distances on a GPU: tiles of the distance matrix held in registers, coordinates streamed past them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# By name: triton comes with torch where there is a GPU, and nowhere else.
triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

SIDE = 64  # rows and columns of a tile
SPLITS = 64  # partial sums over coordinates, added in a fixed order: the same digits on every run


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
    """[rows, columns] l1 distances between points a [rows, k] and b [columns, k], float64 on their device.

    Where a is b only the upper half is filled, the tiles of the diagonal in full.
    """
    import torch

    half = a is b
    (rows, length), columns = a.shape, b.shape[0]
    # Coordinates outermost, so that neighbouring threads read neighbouring numbers.
    a = a.T.contiguous()  # [k, rows]
    b = a if half else b.T.contiguous()  # [k, columns]
    splits = min(SPLITS, length)
    parts = torch.zeros(splits, rows, columns, dtype=torch.float64, device=a.device)
    grid = (triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE), splits)
    _tile[grid](a, b, parts, rows, columns, length, triton.cdiv(length, splits), half, SIDE)
    return parts.sum(0)
