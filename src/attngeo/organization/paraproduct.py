"""The paraproduct: a function A of an organised matrix f, split into one term per pair of scales and a smooth residual.

Let P_ls f be the means of f over the folders of row level l and column level s (the root is level 0), and δ_l, δ'_s the
differences from one level to the next. The telescoping sum

    A(f) = A(P_00 f) + Σ_l δ_l A(P_l0 f) + Σ_s δ'_s A(P_0s f) + Σ_ls δ_l δ'_s A(P_ls f)

is exact. The paraproduct Ã(f) replaces each difference of A by its leading part: A' times the difference of P f in the
sums over one level, and A'(P_ls f) δ_l δ'_s f + A''(P_ls f) (δ_l P_ls f)(δ'_s P_ls f) in the double sum. Theory gives
the residual A(f) − Ã(f) twice the mixed-Hölder regularity of f. Each pair of levels enters once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import ArrayInput, Floats, Ints, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.checks import ByValue, checked
from attngeo.organization.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Elementwise: TypeAlias = Callable[[Floats], Floats]
Function: TypeAlias = tuple[Elementwise, Elementwise, Elementwise]  # A, A', A''
EXP: Function = (np.exp, np.exp, np.exp)
LARGEST = 700  # exp overflows a little above


@dataclass(frozen=True, eq=False)
class Term:
    """The term of one pair of levels: the step from `row` and from `column` to the next level; None means no step."""

    row: int | None
    column: int | None
    exact: Floats  # [n, m] the difference of A
    first: Floats  # [n, m] A' times the difference of P f; for the constant term A(P_00 f)
    second: Floats  # [n, m] A'' times the product of the two differences; 0 if there is only one step

    @property
    def approximation(self) -> Floats:
        """Return the leading part of the difference, `first + second`."""
        return self.first + self.second


@dataclass(frozen=True, eq=False)
class Paraproduct(ByValue, Drawable):
    """A function A of a matrix f, and its paraproduct along a row tree and a column tree.

    >>> f, (rows, columns) = planted((32, 24), seed=0)
    >>> whole, half = (paraproduct(size * f, rows, columns) for size in (1e-2, 5e-3))
    >>> float((abs(whole.residual).max() / abs(half.residual).max()).round(1))  # the residual is of second order
    4.0
    """

    matrix: Floats  # [n, m] the argument of A: f, or f minus the logsumexp of its rows for the softmax
    row_tree: Tree
    column_tree: Tree
    function: Function  # A, A', A''
    name: str = ""  # "exp" or "softmax"; empty for a function of the user

    @cached_property
    def exact(self) -> Floats:
        """Return A(f), [n, m]."""
        return np.asarray(self.function[0](self.matrix), np.float64)

    @cached_property
    def approximation(self) -> Floats:
        """Return the paraproduct Ã(f), [n, m]."""
        total = np.zeros_like(self.matrix)
        for term in self.terms():
            total += term.first
            total += term.second
        return total

    @cached_property
    def residual(self) -> Floats:
        """Return A(f) − Ã(f), [n, m]."""
        return self.exact - self.approximation

    def mean(self, row: int, column: int) -> Floats:
        """Return P_ls f [n, m] for l = `row`, s = `column`: each entry is replaced by the mean over its folder."""
        trees = {"row": (row, self.row_tree), "column": (column, self.column_tree)}
        rows, columns = (
            tree.levels[whole_number(level, name, -tree.depth, tree.depth - 1)] for name, (level, tree) in trees.items()
        )
        return _means(_means(self.matrix, rows, 0), columns, 1)

    def terms(self) -> Iterator[Term]:
        """Yield the constant term, the terms of the columns alone, then for each row level its own and all pairs."""
        function, slope, curvature = self.function
        zero = np.zeros_like(self.matrix)
        rows, columns = self.row_tree.levels, self.column_tree.levels

        def level(row: int) -> list[Floats]:
            """Return P_ls f for all column levels s, given the row level l."""
            means = _means(self.matrix, rows[row], 0)
            return [_means(means, labels, 1) for labels in columns]

        upper = level(0)
        values = [function(mean) for mean in upper]
        yield Term(None, None, values[0], values[0], zero)
        for s in range(len(columns) - 1):
            step = upper[s + 1] - upper[s]
            yield Term(None, s, values[s + 1] - values[s], slope(upper[s]) * step, zero)
        for l in range(len(rows) - 1):  # noqa: E741 (l as in the formula)
            lower = level(l + 1)
            below = [function(mean) for mean in lower]
            yield Term(l, None, below[0] - values[0], slope(upper[0]) * (lower[0] - upper[0]), zero)
            for s in range(len(columns) - 1):
                along, across = lower[s] - upper[s], upper[s + 1] - upper[s]  # δ_l P_ls f, δ'_s P_ls f
                mixed = lower[s + 1] - lower[s] - across  # δ_l δ'_s f
                exact = below[s + 1] - below[s] - values[s + 1] + values[s]
                yield Term(l, s, exact, slope(upper[s]) * mixed, curvature(upper[s]) * along * across)
            upper, values = lower, below

    def plot(self) -> Figure:
        """Return a figure of f, A(f), Ã(f) and the residual, in the order of the trees."""
        return draw("paraproduct_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the paraproduct to one .npz file and return its path; only "exp" and "softmax" can be saved."""
        if not self.name:
            raise InputError(
                "paraproduct: a function of your own cannot be saved, save the matrix and the trees instead"
            )
        arrays = {"matrix": self.matrix, **self.row_tree.as_arrays("row"), **self.column_tree.as_arrays("column")}
        return save_arrays(path, "paraproduct", arrays, {"function": self.name})

    @classmethod
    def load(cls, path: str | Path) -> Paraproduct:
        """Return the paraproduct that `save` wrote."""
        arrays, about = load_arrays(path, "paraproduct")
        with naming_file(path):
            trees = Tree.from_arrays(arrays, "row"), Tree.from_arrays(arrays, "column")
            matrix = _checked(required_array(arrays, "matrix"), *trees)
            return cls(matrix, *trees, EXP, _known(about["function"]))

    def __repr__(self) -> str:
        n, m = self.matrix.shape
        size = float(np.linalg.norm(self.residual) / max(float(np.linalg.norm(self.exact)), 1e-300))
        return f"Paraproduct({n} × {m}, residual {size:.3g} of A(f) in l2)"


def paraproduct(
    f: ArrayInput, row_tree: Tree, column_tree: Tree, function: Literal["exp", "softmax"] | Function = "exp"
) -> Paraproduct:
    """Return the paraproduct of A(f) along two trees.

    f:        [n, m]
    function: "exp", "softmax" over each row, or (A, A', A''), three functions that act elementwise on arrays

    The exact softmax is exp(f − logsumexp of each row), so "softmax" splits exp of that matrix.

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
            raise InputError(f"paraproduct: exp of {matrix.max():.4g} overflows, expected at most {LARGEST}")
        return Paraproduct(matrix, row_tree, column_tree, EXP, function)
    if not hasattr(function, "__len__") or len(function) != 3 or not all(map(callable, function)):
        raise InputError("paraproduct: expected (A, A', A''), a function and its first two derivatives")
    return Paraproduct(matrix, row_tree, column_tree, function)


def _checked(f: ArrayInput, row_tree: Tree, column_tree: Tree) -> Floats:
    """Return f as float64; raise InputError if it does not match the trees."""
    matrix: Floats = np.asarray(checked(f, "paraproduct", (2,)), np.float64)
    sizes = (row_tree.size, column_tree.size)
    if matrix.shape != sizes:
        raise InputError(f"paraproduct: a matrix of shape {matrix.shape} and trees of sizes {sizes} do not match")
    return matrix


def _known(function: str) -> str:
    """Return the name of a known function; raise InputError for any other."""
    if function not in ("exp", "softmax"):
        raise InputError(f"paraproduct: unknown function {function!r}, expected 'exp', 'softmax' or (A, A', A'')")
    return function


def _means(matrix: Floats, labels: Ints, axis: int) -> Floats:
    """Return the matrix with each entry replaced by the mean over its folder of one level along `axis`."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
    sums = np.add.reduceat(np.take(matrix, order, axis), starts, axis)
    sizes = np.bincount(labels).astype(np.float64)
    return np.asarray(np.take(sums / (sizes[:, None] if axis == 0 else sizes), labels, axis))
