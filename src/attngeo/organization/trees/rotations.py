"""Haar transforms along trees: n − 1 plane rotations an axis, O(n) work, never a dense basis.

A folder with children c₁, c₂, … c_m (largest first) has m − 1 Haar functions, the i-th positive on c_i and negative on
the union of the later ones. Carry for each folder ⟨f, 1_F/√|F|⟩. Two such numbers u (on c_i) and v (on the rest R)
give the Haar coefficient and the number of the union by one rotation,

    coefficient = (√|R| u − √|c_i| v)/√(|c_i| + |R|),    union = (√|c_i| u + √|R| v)/√(|c_i| + |R|),

so the whole transform is orthogonal by construction and its inverse is the same rotations turned back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, is_torch
from attngeo.organization.trees.folders import Folders

BLOCK = 1 << 24  # numbers rotated at a time, so that the gathered pairs stay small


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

    def apply(self, array: Any, back: bool = False) -> Any:
        """Transform the middle axis of `array` [outer, n, inner], NumPy or torch; `back` is the inverse."""
        out = array.clone() if is_torch(array) else array.copy()
        outer, n, inner = array.shape
        rows = max(1, BLOCK // (n * inner))
        columns = max(1, BLOCK // n)
        for i in range(0, outer, rows):
            for j in range(0, inner, columns):
                self._rotate(out[i : i + rows, :, j : j + columns], back)
        return out

    def _rotate(self, part: Any, back: bool) -> None:
        """Apply all rotations to `part` [outer, n, inner] in place, those of one round at the same time."""
        if back:
            part[:, self.slot] = part.clone() if is_torch(part) else part.copy()
        for chosen in reversed(self.rounds) if back else self.rounds:
            p, q = self.first[chosen], self.second[chosen]
            c, s = _like(self.cosine[chosen, None], part), _like(self.sine[chosen, None], part)
            u, v = part[:, p], part[:, q]
            part[:, p] = c * u + s * v if back else c * u - s * v
            part[:, q] = c * v - s * u if back else c * v + s * u
        if not back:
            part[...] = part[:, self.slot]


def rotations_of(folders: Folders, order: Ints) -> Rotations:
    """Return the rotations of a tree, given its folders and the depth-first order of its elements [n].

    Columns are numbered level by level, folders by label, children largest first.
    """
    n = len(order)
    counts = np.diff(folders.start)
    parent = np.repeat(np.arange(folders.count), counts)  # of each entry of folders.child
    appears = np.argsort(order).tolist()  # first place of each folder in the order
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


def _like(values: Floats, part: Any) -> Any:
    if is_torch(part):
        import torch

        return torch.as_tensor(values, dtype=part.dtype, device=part.device)
    return values.astype(part.dtype)
