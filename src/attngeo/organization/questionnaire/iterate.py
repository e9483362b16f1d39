"""The questionnaire: the tree of each axis is grown from the trees of the others, in turn, until they settle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from attngeo.arrays import Floats, is_torch
from attngeo.errors import InputError, first_line
from attngeo.io.progress import Progress
from attngeo.organization.checks import checked
from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.agreement import closeness_correlation
from attngeo.organization.geometry.l1 import l1_norm
from attngeo.organization.geometry.tree_distance import SliceDistances
from attngeo.organization.haar.transform import forward
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.questionnaire.grow import binary_tree, flexible_tree
from attngeo.organization.questionnaire.refine import expanded_slices, haar_tree
from attngeo.organization.trees.tree import Tree


@dataclass(frozen=True)
class Settings:
    """The settings of one run of the questionnaire."""

    iterations: int
    alpha: float  # exponent of the level in a folder's weight
    beta: float  # exponent of the size in a folder's weight
    tree: Literal["flexible", "binary"]
    start: Literal["cosine", "gaussian"]  # the initial affinity
    constant: float  # of the penalty for joining large folders of a flexible tree
    epsilon: float  # width of the affinity kernel, in medians of the distance
    refine: bool  # end with a round that minimises the total l1 of the Haar coefficients

    @classmethod
    def of(
        cls,
        dimensions: int,
        *,
        iterations: int | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        tree: Literal["flexible", "binary"] = "flexible",
        start: Literal["cosine", "gaussian"] = "cosine",
        constant: float = 1.0,
        epsilon: float = 1.0,
        refine: bool | None = None,
    ) -> Settings:
        """Fill in the defaults, which differ between matrices (2 dimensions) and tensors (3), and check the values."""
        tensor = dimensions == 3
        iterations = (3 if tensor else 10) if iterations is None else iterations
        alpha = (0.0 if tensor else 1.0) if alpha is None else alpha
        beta = (1.0 if tensor else 0.0) if beta is None else beta
        refine = (tensor and tree == "flexible") if refine is None else refine
        if iterations < 1:
            raise InputError(f"organize: expected at least one iteration, got {iterations}")
        if tree not in ("flexible", "binary") or start not in ("cosine", "gaussian"):
            raise InputError(f"organize: no tree {tree!r} or start {start!r}; flexible or binary, cosine or gaussian")
        return cls(
            int(iterations), float(alpha), float(beta), tree, start, float(constant), float(epsilon), bool(refine)
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """The state after one iteration: its trees, the total l1 of the Haar coefficients, the change of each tree.

    >>> step = organize(planted((16, 12, 8), seed=0)[0]).history[0]
    >>> step.stage, step.trees[2].size, step.likeness[2]  # the heads had no tree before
    ('iteration', 8, None)
    """

    stage: str  # "iteration" or "refined"
    trees: tuple[Tree, ...]
    l1: float
    likeness: tuple[float | None, ...]  # correlation of closeness with the axis' previous tree; None without one


@dataclass(frozen=True)
class Settled:
    """The trees and affinities of all axes after the last iteration, and the history that led there."""

    trees: tuple[Tree, ...]
    affinities: tuple[Floats, ...]  # [n, n] per axis
    history: tuple[Step, ...]


def settle(values: Any, settings: Settings, progress: Progress | None = None) -> Settled:
    """Run the questionnaire on a matrix or 3-tensor that `prepared` returned.

    Tensors: query and key trees from the initial affinity, then in every iteration heads, queries, keys. Matrices: row
    tree from the initial affinity, then in every iteration columns, rows. Stops early when no tree changes.
    """
    tensor = values.ndim == 3
    # One copy per axis with that axis outermost in memory, because distances read whole slices. On a device the
    # distances make their own.
    by_axis = [values if is_torch(values) else _axis_outermost(values, axis) for axis in range(values.ndim)]
    scratch = Scratch()
    distances = [SliceDistances(copy, axis, scratch) for axis, copy in enumerate(by_axis)]

    def grow(affinity: Floats) -> Tree:
        return flexible_tree(affinity, settings.constant) if settings.tree == "flexible" else binary_tree(affinity)

    def total_l1() -> float:
        out = None if is_torch(values) else scratch.take(values.shape, values.dtype)
        return l1_norm(forward(values, trees, out))

    turns = (2, 0, 1) if tensor else (1, 0)
    refining = len(turns) if settings.refine else 0
    total = (2 if tensor else 1) + settings.iterations * len(turns) + refining
    done = 0

    def report(upto: int | None = None) -> None:
        nonlocal done
        done = done + 1 if upto is None else upto
        if progress is not None:
            progress(done, total)

    initial_affinity = cosine_affinity if settings.start == "cosine" else gaussian_affinity
    affinities: dict[int, Floats] = {}
    trees: dict[int, Tree] = {}
    for axis in (0, 1) if tensor else (0,):
        affinities[axis] = initial_affinity(by_axis[axis], axis)
        trees[axis] = grow(affinities[axis])
        report()
    history: list[Step] = []
    seen_by: dict[int, dict[int, Tree]] = {}
    for _ in range(settings.iterations):
        before = dict(trees)
        for axis in turns:
            others = {other: trees[other] for other in turns if other != axis}
            if seen_by.get(axis) != others:  # the same trees would give the same distances
                seen_by[axis] = others
                through = distances[axis].through(others, settings.alpha, settings.beta)
                affinities[axis] = affinity_from_distance(through, settings.epsilon)
                trees[axis] = grow(affinities[axis])
            report()
        same = trees == before
        history.append(_step("iteration", trees, before, history[-1].l1 if same else total_l1()))
        if same:
            report(total - refining)
            break
    if settings.refine:
        before, best = dict(trees), history[-1].l1
        for axis in turns:
            found, l1 = haar_tree(expanded_slices(by_axis[axis], axis, trees, scratch))
            if l1 < best:
                trees[axis], best = found, l1
            report()
        history.append(_step("refined", trees, before, best))
    axes = range(values.ndim)
    return Settled(tuple(trees[a] for a in axes), tuple(affinities[a] for a in axes), tuple(history))


def prepared(array: Any, device: str | None = None) -> Any:
    """Return the values, checked, where the work is to be done: as NumPy or torch, in float64 on a named device."""
    return checked(_on_device(array, device), "tensor")


def _on_device(array: Any, device: str | None) -> Any:
    if device is None or (str(device) == "cpu" and not is_torch(array)):
        return array.detach() if is_torch(array) else array
    try:
        import torch
    except ImportError:
        raise InputError(f"organize: device={device!r} needs torch: pip install 'attngeo[torch]'") from None
    try:
        return torch.as_tensor(array).detach().to(device).double()  # moved before it doubles in size
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(f"organize: device {device!r} cannot be used: {first_line(error)}") from None


def _axis_outermost(values: Any, axis: int) -> Any:
    """Return `values` in its own shape, with `axis` outermost in memory."""
    return np.moveaxis(slices_first(values, axis), 0, axis)


def _step(stage: str, trees: Mapping[int, Tree], before: Mapping[int, Tree], l1: float) -> Step:
    axes = range(len(trees))
    likeness = tuple(closeness_correlation(trees[axis], before[axis]) if axis in before else None for axis in axes)
    return Step(stage, tuple(trees[axis] for axis in axes), l1, likeness)
