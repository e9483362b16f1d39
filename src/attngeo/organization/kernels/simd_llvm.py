"""Vector operations for the numba loops, written as LLVM intermediate code.

numba's own vectoriser stops at half the width of the registers and so at half the speed. Each function here builds
the instructions of one small operation on vectors of LANES numbers; numba inserts them where a compiled loop calls it:

    add_minima_tile              sums of minima of 4 × 4 pairs of rows, the innermost loop of all distances
    transpose_scaled_difference  a LANES × LANES block of (source − centre), transposed and scaled
    transpose_gathered           a LANES × LANES block of chosen rows, transposed
    sum_rows                     the sum of chosen rows, kept in one register
    store_scaled_row             one row times a factor
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 8 if binding.get_host_cpu_features().get("avx512f") else 4  # float64 numbers per vector register
SIDE = 4  # rows and columns of a tile: 16 running sums and 8 operands fit the registers


class _Rows:
    """Addresses, loads and stores for the rows of a two-dimensional array of floats."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, argument: int) -> None:
        kind = signature.args[argument]
        array = context.make_array(kind)(context, builder, args[argument])
        self._builder, self._word = builder, context.get_value_type(types.intp)
        self._number = context.get_value_type(kind.dtype)
        self._data = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        self._stride = cgutils.unpack_tuple(builder, array.strides, 2)[0]

    def at(self, index: Any, offset: int = 0) -> Any:
        """Return a pointer to the first number of row index + offset."""
        offset_bytes = self._builder.mul(self._builder.add(index, self._word(offset)), self._stride)
        return self._builder.bitcast(self._builder.gep(self._data, [offset_bytes]), self._number.as_pointer())

    def load(self, pointer: Any, column: Any = None, widen: bool = True) -> Any:
        """Return LANES numbers from `pointer` (plus `column`) on; `widen` converts float32 to float64."""
        builder = self._builder
        pointer = pointer if column is None else builder.gep(pointer, [column])
        numbers = builder.load(self._wide(pointer), align=4)
        doubles = ir.VectorType(ir.DoubleType(), LANES)
        return builder.fpext(numbers, doubles) if widen and self._number != ir.DoubleType() else numbers

    def store(self, numbers: Any, pointer: Any, column: Any = None) -> None:
        """Write LANES numbers to `pointer` (plus `column`)."""
        pointer = pointer if column is None else self._builder.gep(pointer, [column])
        self._builder.store(numbers, self._wide(pointer)).align = 4

    def _wide(self, pointer: Any) -> Any:
        return self._builder.bitcast(pointer, ir.VectorType(self._number, LANES).as_pointer())


def _add_minima_tile(
    typing_context: Any, rows: Any, columns: Any, sums: Any, i: Any, j: Any, start: Any, length: Any
) -> Any:
    """sums[i + u, j + v] += Σ_k min(rows[i + u, k], columns[j + v, k]) for u, v < SIDE, start ≤ k < start + length.

    `length` is a positive multiple of LANES; all arrays are float64 and contiguous. The 16 running sums stay in vector
    registers during the loop over k, so each number loaded is used four times.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, word = ir.VectorType(ir.DoubleType(), LANES), context.get_value_type(types.intp)
        first, second, begin, count = args[3:]
        left, right, cells = (_Rows(context, builder, signature, args, argument) for argument in range(3))
        left_rows = [left.at(first, u) for u in range(SIDE)]
        right_rows = [right.at(second, v) for v in range(SIDE)]
        end = builder.add(begin, count)
        entry, loop, done = builder.block, builder.append_basic_block("sum"), builder.append_basic_block("done")
        builder.branch(loop)

        builder.position_at_end(loop)
        k = builder.phi(word)
        k.add_incoming(begin, entry)
        totals = [builder.phi(lanes) for _ in range(SIDE * SIDE)]
        for total in totals:
            total.add_incoming(ir.Constant(lanes, [0.0] * LANES), entry)

        a, b = [left.load(pointer, k) for pointer in left_rows], [right.load(pointer, k) for pointer in right_rows]
        grown = []
        for cell_index, total in enumerate(totals):
            x, y = a[cell_index // SIDE], b[cell_index % SIDE]
            least = builder.select(builder.fcmp_ordered("<", x, y), x, y)
            grown.append(builder.fadd(total, least))
            total.add_incoming(grown[-1], loop)
        following = builder.add(k, word(LANES))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)

        builder.position_at_end(done)
        for cell_index, total in enumerate(grown):
            cell = builder.gep(cells.at(first, cell_index // SIDE), [builder.add(second, word(cell_index % SIDE))])
            builder.store(builder.fadd(builder.load(cell), _lane_sum(builder, total)), cell)
        return context.get_dummy_value()

    return types.void(rows, columns, sums, types.intp, types.intp, types.intp, types.intp), build


def _transpose_scaled_difference(
    typing_context: Any, rows: Any, i: Any, source: Any, centre: Any, j: Any, column: Any, weights: Any
) -> Any:
    """rows[i + u, w] = (source[j + w, column + u] − centre[j + w, column + u]) · weights[0, w] for u, w < LANES."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table, given, middle, factors = (
            _Rows(context, builder, signature, args, argument) for argument in (0, 2, 3, 6)
        )
        i, j, column = args[1], args[4], args[5]
        block = []
        for w in range(LANES):
            numbers = given.load(given.at(j, w), column)
            block.append(builder.fsub(numbers, middle.load(middle.at(j, w), column)))
        scale = factors.load(factors.at(context.get_value_type(types.intp)(0)))
        for u, numbers in enumerate(_transposed(builder, block)):
            table.store(builder.fmul(numbers, scale), table.at(i, u))
        return context.get_dummy_value()

    return types.void(rows, types.intp, source, centre, types.intp, types.intp, weights), build


def _transpose_gathered(
    typing_context: Any, out: Any, i: Any, j: Any, source: Any, rows: Any, start: Any, column: Any
) -> Any:
    """out[i + u, j + w] = source[rows[0, start + w], column + u] for u, w < LANES; both arrays have the same dtype."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, given = _Rows(context, builder, signature, args, 0), _Rows(context, builder, signature, args, 3)
        i, j, start, column = args[1], args[2], args[5], args[6]
        word = context.get_value_type(types.intp)
        index = _Rows(context, builder, signature, args, 4).at(word(0))
        block = []
        for w in range(LANES):
            row = builder.load(builder.gep(index, [builder.add(start, word(w))]))
            block.append(given.load(given.at(row), column, widen=False))
        for u, numbers in enumerate(_transposed(builder, block)):
            target.store(numbers, target.at(i, u), j)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, source, rows, types.intp, types.intp), build


def _transposed(builder: Any, block: list[Any]) -> list[Any]:
    """Return LANES vectors of LANES numbers with rows and columns exchanged.

    Step by step, for each bit of the index, pairs of vectors exchange the numbers whose row and column differ in it.
    """
    kind = ir.VectorType(ir.IntType(32), LANES)
    bit = 1
    while bit < LANES:
        low = ir.Constant(kind, [k if not k & bit else LANES + k - bit for k in range(LANES)])
        high = ir.Constant(kind, [k + bit if not k & bit else LANES + k for k in range(LANES)])
        for u in range(LANES):
            if not u & bit:
                a, b = block[u], block[u | bit]
                block[u], block[u | bit] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
        bit *= 2
    return block


def _sum_rows(typing_context: Any, rows: Any, i: Any, chosen: Any, start: Any, end: Any) -> Any:
    """rows[i] = Σ rows[chosen[0, k]] for start ≤ k < end, with end > start; rows are LANES wide."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table, word = _Rows(context, builder, signature, args, 0), context.get_value_type(types.intp)
        index = _Rows(context, builder, signature, args, 2).at(word(0))
        lanes = ir.VectorType(ir.DoubleType(), LANES)
        entry, loop, done = builder.block, builder.append_basic_block("add"), builder.append_basic_block("added")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, total = builder.phi(word), builder.phi(lanes)
        k.add_incoming(args[3], entry)
        total.add_incoming(ir.Constant(lanes, [0.0] * LANES), entry)
        grown = builder.fadd(total, table.load(table.at(builder.load(builder.gep(index, [k])))))
        total.add_incoming(grown, loop)
        following = builder.add(k, word(1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[4]), loop, done)
        builder.position_at_end(done)
        table.store(grown, table.at(args[1]))
        return context.get_dummy_value()

    return types.void(rows, types.intp, chosen, types.intp, types.intp), build


def _store_scaled_row(typing_context: Any, out: Any, i: Any, column: Any, rows: Any, j: Any, factor: Any) -> Any:
    """out[i, column : column + LANES] = factor · rows[j]; rows are LANES wide."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, table = _Rows(context, builder, signature, args, 0), _Rows(context, builder, signature, args, 3)
        lanes = ir.VectorType(ir.DoubleType(), LANES)
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), args[5], ir.IntType(32)(0))
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        factors = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), every)
        target.store(builder.fmul(table.load(table.at(args[4])), factors), target.at(args[1]), args[2])
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, rows, types.intp, types.float64), build


def _lane_sum(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's lanes, by adding one half to the other until one number is left."""
    width = LANES
    while width > 1:
        width //= 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        kind = ir.VectorType(ir.IntType(32), width)
        low = builder.shuffle_vector(vector, nothing, ir.Constant(kind, list(range(width))))
        high = builder.shuffle_vector(vector, nothing, ir.Constant(kind, list(range(width, 2 * width))))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.IntType(32)(0))


add_minima_tile = intrinsic(_add_minima_tile)
transpose_scaled_difference = intrinsic(_transpose_scaled_difference)
transpose_gathered = intrinsic(_transpose_gathered)
sum_rows = intrinsic(_sum_rows)
store_scaled_row = intrinsic(_store_scaled_row)
