"""The paraproduct: a function of an organised matrix, split into what its scales say and a smoother rest.

P_ls f are the means of f over folders of row level l and column level s, the root being level 0, and δ, δ' the
differences from one level to the next. Then, exactly,

    A(f) = A(P_00 f) + Σ_l δ_l A(P_l0 f) + Σ_s δ'_s A(P_0s f) + Σ_ls δ_l δ'_s A(P_ls f),

and Ã(f) puts for each difference of A its leading part: A' δ on the borders, A' δδ' f + A'' (δ P f)(δ' P f) inside.
The residual A(f) − Ã(f) has twice the mixed-Hölder regularity of f. Each scale enters once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from attngeo.errors import InputError
from attngeo.organization.arrays import Floats, checked, is_torch
from attngeo.organization.tree import Tree

Function = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]


@dataclass(frozen=True, eq=False)
class Term:
    """What the step from level `row` to the next and from level `column` to the next adds; None: no step there."""

    row: int | None
    column: int | None
    exact: Floats  # [n, m] difference of A
    first: Floats  # [n, m] A' times the difference of f (A itself for the constant)
    second: Floats  # [n, m] A'' times the product of the two differences; zero on the borders

    @property
    def approximation(self) -> Floats:
        return self.first + self.second


@dataclass(frozen=True, eq=False)
class Paraproduct:
    """A(f) and its paraproduct along a row and a column tree."""

    matrix: Floats  # [n, m] what A is applied to: f, or f − logsumexp of its rows for the softmax
    row_tree: Tree
    column_tree: Tree
    function: Function  # A, A', A''

    @cached_property
    def exact(self) -> Floats:
        """A(f)."""
        return np.asarray(self.function[0](self.matrix), np.float64)

    @cached_property
    def approximation(self) -> Floats:
        """Ã(f)."""
        total = np.zeros_like(self.matrix)
        for term in self.terms():
            total += term.first
            total += term.second
        return total

    @cached_property
    def residual(self) -> Floats:
        """A(f) − Ã(f)."""
        return self.exact - self.approximation

    def mean(self, row: int, column: int) -> Floats:
        """P_ls f: means over folders of a row level and a column level, spread over the elements, [n, m]."""
        return _means(_means(self.matrix, self.row_tree.levels[row], 0), self.column_tree.levels[column], 1)

    def terms(self) -> Iterator[Term]:
        """The constant, the row border, the column border, then every pair of levels, one at a time."""
        function, slope, curve = self.function
        nothing = np.zeros_like(self.matrix)
        rows, columns = self.row_tree.levels, self.column_tree.levels

        def level(row: int) -> list[Floats]:
            """P_ls f for all column levels s."""
            means = _means(self.matrix, rows[row], 0)
            return [_means(means, labels, 1) for labels in columns]

        upper = level(0)
        values = [function(mean) for mean in upper]
        yield Term(None, None, values[0], values[0], nothing)
        for s in range(len(columns) - 1):
            step = upper[s + 1] - upper[s]
            yield Term(None, s, values[s + 1] - values[s], slope(upper[s]) * step, nothing)
        for l in range(len(rows) - 1):  # noqa: E741 (the level of the formula)
            lower = level(l + 1)
            below = [function(mean) for mean in lower]
            yield Term(l, None, below[0] - values[0], slope(upper[0]) * (lower[0] - upper[0]), nothing)
            for s in range(len(columns) - 1):
                along, across = lower[s] - upper[s], upper[s + 1] - upper[s]  # δ_l P_ls f, δ'_s P_ls f
                mixed = lower[s + 1] - lower[s] - across  # δ_l δ'_s f
                exact = below[s + 1] - below[s] - values[s + 1] + values[s]
                yield Term(l, s, exact, slope(upper[s]) * mixed, curve(upper[s]) * along * across)
            upper, values = lower, below

    def __repr__(self) -> str:
        n, m = self.matrix.shape
        size = float(np.linalg.norm(self.residual) / max(float(np.linalg.norm(self.exact)), 1e-300))
        return f"Paraproduct({n} × {m}, residual {size:.3g} of A(f) in l2)"


def paraproduct(
    f: Any, row_tree: Tree, column_tree: Tree, function: Literal["exp", "softmax"] | Function = "exp"
) -> Paraproduct:
    """Split A(f) along two trees: exp, the softmax over each row, or any (A, A', A'') that work on arrays.

    The exact softmax is exp of f less the logsumexp of its rows, and that is the matrix then split.
    """
    if is_torch(f):
        f = f.detach().cpu().numpy()
    matrix = np.asarray(checked(f, "paraproduct", (2,)), np.float64)
    sizes = (row_tree.size, column_tree.size)
    if matrix.shape != sizes:
        raise InputError(f"paraproduct: a matrix {matrix.shape} and trees of {sizes} do not match")
    if isinstance(function, str):
        if function not in ("exp", "softmax"):
            raise InputError(f"paraproduct: function {function!r}, expected 'exp', 'softmax' or (A, A', A'')")
        if function == "softmax":
            top = matrix.max(1, keepdims=True)
            matrix = matrix - top - np.log(np.exp(matrix - top).sum(1, keepdims=True))
        function = (np.exp, np.exp, np.exp)
    if len(function) != 3:
        raise InputError("paraproduct: expected the function and its first two derivatives")
    return Paraproduct(matrix, row_tree, column_tree, function)


def _means(matrix: Floats, labels: Any, axis: int) -> Floats:
    """Means over the folders of one level, spread over their elements."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
    sums = np.add.reduceat(np.take(matrix, order, axis), starts, axis)
    sizes = np.bincount(labels).astype(np.float64)
    return np.asarray(np.take(sums / (sizes[:, None] if axis == 0 else sizes), labels, axis))
