"""GPU kernel for the Haar transform, written in Triton: all plane rotations of an axis in one launch.

With torch's own operations each round of independent rotations is a separate launch.
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

COLUMNS = 128  # columns per program, one per thread


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
