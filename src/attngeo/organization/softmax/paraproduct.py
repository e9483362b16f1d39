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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attngeo.arrays import Floats, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.checks import checked
from attngeo.organization.trees.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]
EXP: Function = (np.exp, np.exp, np.exp)
LARGEST = 700  # exp of little more overflows


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
class Paraproduct(Drawable):
    """A(f) and its paraproduct along a row and a column tree.

    >>> f, (rows, columns) = planted((32, 24), seed=0)
    >>> whole, half = (paraproduct(size * f, rows, columns) for size in (1e-2, 5e-3))
    >>> float((abs(whole.residual).max() / abs(half.residual).max()).round(1))  # of second order
    4.0
    """

    matrix: Floats  # [n, m] what A is applied to: f, or f − logsumexp of its rows for the softmax
    row_tree: Tree
    column_tree: Tree
    function: Function  # A, A', A''
    name: str = ""  # "exp" or "softmax"; empty: a function of one's own

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

    def plot(self) -> Figure:
        """f, A(f), Ã(f) and the residual, in the order of the trees."""
        return draw("paraproduct_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write to one .npz file; a function of one's own cannot be written."""
        if not self.name:
            raise InputError("paraproduct: a function of your own cannot be saved, keep the matrix and the trees")
        arrays = {"matrix": self.matrix, **self.row_tree.as_arrays("row"), **self.column_tree.as_arrays("column")}
        return save_arrays(path, "paraproduct", arrays, {"function": self.name})

    @classmethod
    def load(cls, path: str | Path) -> Paraproduct:
        """Read what `save` wrote."""
        arrays, about = load_arrays(path, "paraproduct")
        with naming_file(path):
            trees = Tree.from_arrays(arrays, "row"), Tree.from_arrays(arrays, "column")
            matrix = _checked(required_array(arrays, "matrix"), *trees)
            return cls(matrix, *trees, EXP, _known(about["function"]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Paraproduct):
            return NotImplemented
        same = (self.row_tree, self.column_tree, self.function) == (other.row_tree, other.column_tree, other.function)
        return same and np.array_equal(self.matrix, other.matrix)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        n, m = self.matrix.shape
        size = float(np.linalg.norm(self.residual) / max(float(np.linalg.norm(self.exact)), 1e-300))
        return f"Paraproduct({n} × {m}, residual {size:.3g} of A(f) in l2)"


def paraproduct(
    f: Any, row_tree: Tree, column_tree: Tree, function: Literal["exp", "softmax"] | Function = "exp"
) -> Paraproduct:
    """Split A(f) along two trees: exp, the softmax over each row, or any (A, A', A'') that work on arrays.

    The exact softmax is exp of f less the logsumexp of its rows, and that is the matrix then split.

    >>> split = paraproduct([[0, 1], [0, 1]], Tree.dyadic(2), Tree.dyadic(2), "softmax")
    >>> split.exact.round(2), len(list(split.terms()))
    (array([[0.27, 0.73],
           [0.27, 0.73]]), 4)
    """
    matrix = _checked(to_numpy(f), row_tree, column_tree)
    if isinstance(function, str):
        if _known(function) == "softmax":
            top = matrix.max(1, keepdims=True)
            matrix = matrix - top - np.log(np.exp(matrix - top).sum(1, keepdims=True))
        if matrix.max() > LARGEST:
            raise InputError(f"paraproduct: exp of {matrix.max():.4g} is too large a number, expected up to {LARGEST}")
        return Paraproduct(matrix, row_tree, column_tree, EXP, function)
    if len(function) != 3 or not all(map(callable, function)):
        raise InputError("paraproduct: expected the function and its first two derivatives")
    return Paraproduct(matrix, row_tree, column_tree, function)


def _checked(f: Any, row_tree: Tree, column_tree: Tree) -> Floats:
    matrix = np.asarray(checked(f, "paraproduct", (2,)), np.float64)
    sizes = (row_tree.size, column_tree.size)
    if matrix.shape != sizes:
        raise InputError(f"paraproduct: a matrix {matrix.shape} and trees of {sizes} do not match")
    return matrix


def _known(function: str) -> str:
    if function not in ("exp", "softmax"):
        raise InputError(f"paraproduct: function {function!r}, expected 'exp', 'softmax' or (A, A', A'')")
    return function


def _means(matrix: Floats, labels: Any, axis: int) -> Floats:
    """Means over the folders of one level, spread over their elements."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
    sums = np.add.reduceat(np.take(matrix, order, axis), starts, axis)
    sizes = np.bincount(labels).astype(np.float64)
    return np.asarray(np.take(sums / (sizes[:, None] if axis == 0 else sizes), labels, axis))
