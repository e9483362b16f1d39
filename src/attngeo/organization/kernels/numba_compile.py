"""Two decorators that compile a Python loop with numba; they differ in how floating-point sums may be ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compile_loop(loop: Loop) -> Loop:
    """Compile a loop that adds numbers in exactly the order written.

    The loop is compiled on first use, cached on disk and runs without the GIL, so that threads can share the work.
    """
    return cast(Loop, numba.njit(nogil=True, cache=True)(loop))


def compile_vector_loop(loop: Loop) -> Loop:
    """Compile a loop whose sums may be taken in vector lanes.

    The order of additions is then fixed by the compiled code, so results are the same on every run of one machine.
    """
    return cast(Loop, numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})(loop))
