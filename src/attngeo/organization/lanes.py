"""Sixteen sums of minima at once, in vector registers: the one loop that everything else waits for.

Written as LLVM vectors because numba's own vectoriser stops at half the width of the registers and leaves half the
speed behind.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 8 if binding.get_host_cpu_features().get("avx512f") else 4
SIDE = 4  # rows and columns of a tile


class _Rows:
    """The rows of a two-dimensional float64 array, as LLVM sees them."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._word = builder, context.get_value_type(types.intp)
        self._data = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        self._stride = cgutils.unpack_tuple(builder, array.strides, 2)[0]

    def at(self, index: Any, offset: int = 0) -> Any:
        """A pointer to row index + offset."""
        place = self._builder.mul(self._builder.add(index, self._word(offset)), self._stride)
        return self._builder.bitcast(self._builder.gep(self._data, [place]), ir.DoubleType().as_pointer())


def _vector(builder: Any, pointer: Any) -> Any:
    return builder.bitcast(pointer, ir.VectorType(ir.DoubleType(), LANES).as_pointer())


def _least_tile(
    typing_context: Any, rows: Any, columns: Any, sums: Any, i: Any, j: Any, start: Any, length: Any
) -> Any:
    """sums[i + u, j + v] += Σ_k min(rows[i + u, k], columns[j + v, k]), u, v < 4, k from start for `length` ≥ LANES.

    `length` is a multiple of LANES; all arrays are float64 and contiguous.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, word = ir.VectorType(ir.DoubleType(), LANES), context.get_value_type(types.intp)
        first, second, begin, count = args[3:]
        mine, yours, cells = (_Rows(context, builder, signature.args[x], args[x]) for x in range(3))
        ours = [mine.at(first, u) for u in range(SIDE)]
        theirs = [yours.at(second, v) for v in range(SIDE)]
        end = builder.add(begin, count)
        entry, loop, done = builder.block, builder.append_basic_block("sum"), builder.append_basic_block("done")
        builder.branch(loop)

        builder.position_at_end(loop)
        k = builder.phi(word)
        k.add_incoming(begin, entry)
        totals = [builder.phi(lanes) for _ in range(SIDE * SIDE)]
        for total in totals:
            total.add_incoming(ir.Constant(lanes, [0.0] * LANES), entry)

        def load(pointer: Any) -> Any:
            return builder.load(_vector(builder, builder.gep(pointer, [k])), align=8)

        a, b = [load(pointer) for pointer in ours], [load(pointer) for pointer in theirs]
        grown = []
        for place, total in enumerate(totals):
            x, y = a[place // SIDE], b[place % SIDE]
            least = builder.select(builder.fcmp_ordered("<", x, y), x, y)
            grown.append(builder.fadd(total, least))
            total.add_incoming(grown[-1], loop)
        following = builder.add(k, word(LANES))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)

        builder.position_at_end(done)
        for place, total in enumerate(grown):
            cell = builder.gep(cells.at(first, place // SIDE), [builder.add(second, word(place % SIDE))])
            builder.store(builder.fadd(builder.load(cell), _across(builder, total)), cell)
        return context.get_dummy_value()

    return types.void(rows, columns, sums, types.intp, types.intp, types.intp, types.intp), build


def _add_row(typing_context: Any, rows: Any, i: Any, j: Any) -> Any:
    """rows[i] += rows[j], rows LANES wide."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = _Rows(context, builder, signature.args[0], args[0])
        here, there = (_vector(builder, table.at(args[x])) for x in (1, 2))
        total = builder.fadd(builder.load(here, align=8), builder.load(there, align=8))
        store = builder.store(total, here)
        store.align = 8
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp), build


def _across(builder: Any, vector: Any) -> Any:
    """The sum of a vector's lanes, halves added to halves."""
    width = LANES
    while width > 1:
        width //= 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        kind = ir.VectorType(ir.IntType(32), width)
        low = builder.shuffle_vector(vector, nothing, ir.Constant(kind, list(range(width))))
        high = builder.shuffle_vector(vector, nothing, ir.Constant(kind, list(range(width, 2 * width))))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.IntType(32)(0))


least_tile = intrinsic(_least_tile)
add_row = intrinsic(_add_row)
