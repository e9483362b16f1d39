"""Haar transforms along trees: n − 1 plane rotations an axis, O(n) work, never a dense basis.

A folder with children c₁, c₂, … c_m (largest first) has m − 1 Haar functions, the i-th positive on c_i and negative on
the union of the later ones. Carry for each folder ⟨f, 1_F/√|F|⟩. Two such numbers u (on c_i) and v (on the rest R)
give the Haar coefficient and the number of the union by one rotation,

    coefficient = (√|R| u − √|c_i| v)/√(|c_i| + |R|),    union = (√|c_i| u + √|R| v)/√(|c_i| + |R|),

so the whole transform is orthogonal by construction and its inverse is the same rotations turned back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import InputError
from attngeo.organization import threads
from attngeo.organization.arrays import Floats, Ints, checked_axis, is_torch

if TYPE_CHECKING:
    from attngeo.organization.tree import Tree

BLOCK = 1 << 24  # numbers rotated at a time on the plain path, so that the gathered pairs stay small


@dataclass(frozen=True)
class Rotations:
    """n − 1 rotations in an order that works: slot `first` keeps the coefficient, slot `second` goes on."""

    first: Ints  # [n − 1]
    second: Ints  # [n − 1]
    cosine: Floats  # [n − 1] √(|R| / (|c_i| + |R|))
    sine: Floats  # [n − 1] √(|c_i| / (|c_i| + |R|))
    slot: Ints  # [n] where the coefficient of each column is found
    share: Floats  # [n] support of each column, as a share of the axis
    level: Ints  # [n] level on which the column's folder splits; −1 for the constant

    @cached_property
    def rounds(self) -> tuple[Ints, ...]:
        """The rotations in rounds, such that those of one round touch different slots."""
        ready = [0] * len(self.slot)
        turns = []
        for p, q in zip(self.first.tolist(), self.second.tolist(), strict=True):
            turns.append(max(ready[p], ready[q]))
            ready[p] = ready[q] = turns[-1] + 1
        order = np.argsort(turns, kind="stable")
        return tuple(np.split(order, np.cumsum(np.bincount(np.asarray(turns, np.int64)))[:-1])) if turns else ()

    def steps(self, back: bool, kind: Any) -> tuple[Ints, Ints, Any, Any, Ints]:
        """Rows to turn together, cosines and sines of one precision, and where each row of the result is found.

        Back: the same in reverse, on rows that stand in the order of the columns.
        """
        cosine, sine = self.cosine.astype(kind), self.sine.astype(kind)
        if not back:
            return self.first, self.second, cosine, sine, self.slot[None]
        column = np.argsort(self.slot)
        return column[self.first[::-1]], column[self.second[::-1]], cosine[::-1].copy(), -sine[::-1], column[None]


def rotations_of(tree: Tree) -> Rotations:
    """The rotations of `tree`, columns numbered level by level, folders by label, children largest first."""
    folders, n = tree.folders, tree.size
    counts = np.diff(folders.start)
    parent = np.repeat(np.arange(folders.count), counts)  # of each entry of folders.child
    appears = np.argsort(tree.order).tolist()  # first place of each folder in the order
    starts, listed = folders.start.tolist(), folders.child.tolist()
    for folder in range(n, folders.count):
        appears.append(min(appears[c] for c in listed[starts[folder] : starts[folder + 1]]))
    sizes = folders.size[folders.child]
    child = folders.child[np.lexsort((-np.asarray(appears)[folders.child], -sizes, parent))]
    sizes = folders.size[child]
    slots, listed = list(range(n)), child.tolist()
    for folder in range(n, folders.count):
        slots.append(slots[listed[starts[folder + 1] - 1]])  # of the smallest child, which every rotation keeps
    slot = np.asarray(slots, np.int64)
    place = np.arange(len(child)) - folders.start[parent]  # i − 1 for the i-th child
    before = np.cumsum(sizes) - sizes
    both = folders.size[parent] - (before - before[folders.start[parent]])  # |c_i| + |R|
    keeps = np.flatnonzero(place < counts[parent] - 1)  # all but the last child give a column
    by_turn = keeps[np.lexsort((-place[keeps], parent[keeps]))]
    by_column = keeps[np.lexsort((place[keeps], folders.label[parent[keeps]], folders.bottom[parent[keeps]]))]
    return Rotations(
        first=slot[child[by_turn]],
        second=slot[parent[by_turn]],
        cosine=np.sqrt((both - sizes)[by_turn] / both[by_turn]),
        sine=np.sqrt(sizes[by_turn] / both[by_turn]),
        slot=np.concatenate([slot[-1:], slot[child[by_column]]]),
        share=np.concatenate([[1.0], both[by_column] / n]),
        level=np.concatenate([[-1], folders.bottom[parent[by_column]]]),
    )


def forward(array: Any, trees: Mapping[int, Tree], out: Any = None) -> Any:
    """Coefficients of `array` along the axes of `trees`, same shape, kind and precision; column 0 is the constant.

    `out`, a numpy array of the same shape, is written to instead of a new one, in its own precision.
    """
    return _along(array, trees, False, out)


def inverse(coefficients: Any, trees: Mapping[int, Tree]) -> Any:
    """The array whose coefficients along the axes of `trees` these are."""
    return _along(coefficients, trees, True, None)


def _along(array: Any, trees: Mapping[int, Tree], back: bool, out: Any) -> Any:
    shape = tuple(array.shape)
    turns: dict[int, Rotations] = {}
    parts: tuple[int, ...]
    for axis, tree in trees.items():
        axis = checked_axis(axis, len(shape))
        if shape[axis] != tree.size:
            raise InputError(f"tree of axis {axis}: has {tree.size} elements, the array has {shape[axis]} there")
        turns[axis] = tree.rotations
    if is_torch(array) or (jit := threads.jit()) is None:
        result = array if out is None else _copied(array, out)
        for axis, turn in turns.items():
            parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
            result = _plain(result.reshape(parts), turn, back).reshape(shape)
        return result
    result = np.empty(shape, array.dtype) if out is None else out
    source = np.ascontiguousarray(array)
    if {len(shape) - 1, len(shape) - 2} <= turns.keys():
        # Both of the last axes while a slice is in cache.
        pair = turns.pop(len(shape) - 1), turns.pop(len(shape) - 2)
        parts = (prod(shape[:-2]), *shape[-2:])
        _compiled(jit.rotate_both, source.reshape(parts), result.reshape(parts), pair, back, parts[0])
        source = result
    for axis, turn in turns.items():
        outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        if inner == 1:
            rotate, parts, total = jit.rotate, (outer, n), outer
        else:
            rotate, parts, total = jit.rotate_across, (outer, n, inner), outer * -(-inner // jit.block_width(n, inner))
        # What we made ourselves is overwritten: one allocation serves all axes.
        _compiled(rotate, source.reshape(parts), result.reshape(parts), (turn,), back, total)
        source = result
    return result if source is result else _copied(array, result)


def _compiled(rotate: Any, flat: Any, out: Any, turns: tuple[Rotations, ...], back: bool, total: int) -> None:
    steps = [turn.steps(back, out.dtype) for turn in turns]
    threads.spread(lambda lo, hi: rotate(flat, out, *steps, lo, hi), total, cost=4.0 * flat.size)


def _copied(array: Any, out: Any) -> Any:
    out[...] = array
    return out


def _plain(flat: Any, turn: Rotations, back: bool) -> Any:
    """The same on numpy or torch: in one launch on a GPU, else rotating side by side what touches different slots."""
    if is_torch(flat) and flat.is_cuda and (gpu := threads.gpu()) is not None:
        *steps, found = turn.steps(back, np.float64)
        return gpu.rotated(flat, *steps, found[0])
    out = flat.clone() if is_torch(flat) else flat.copy()
    outer, n, inner = flat.shape
    rows = max(1, BLOCK // (n * inner))
    columns = max(1, BLOCK // n)
    for i in range(0, outer, rows):
        for j in range(0, inner, columns):
            _rounds(out[i : i + rows, :, j : j + columns], turn, back)
    return out


def _rounds(part: Any, turn: Rotations, back: bool) -> None:
    """All rotations of part [outer, n, inner], in place."""
    if back:
        part[:, turn.slot] = part.clone() if is_torch(part) else part.copy()
    for chosen in reversed(turn.rounds) if back else turn.rounds:
        p, q = turn.first[chosen], turn.second[chosen]
        c, s = _like(turn.cosine[chosen, None], part), _like(turn.sine[chosen, None], part)
        u, v = part[:, p], part[:, q]
        part[:, p] = c * u + s * v if back else c * u - s * v
        part[:, q] = c * v - s * u if back else c * v + s * u
    if not back:
        part[...] = part[:, turn.slot]


def _like(values: Floats, part: Any) -> Any:
    if is_torch(part):
        import torch

        return torch.as_tensor(values, dtype=part.dtype, device=part.device)
    return values.astype(part.dtype)
