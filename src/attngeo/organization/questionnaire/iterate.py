"""The iteration of the questionnaire: each axis in turn gets a tree built from the trees of the other axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngeo.arrays import AnyArray, ArrayInput, Floats, is_torch
from attngeo.errors import InputError, first_line
from attngeo.io.progress import Progress
from attngeo.organization.checks import checked_for_haar
from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.l1 import l1_norm
from attngeo.organization.geometry.tree_agreement import closeness_correlation
from attngeo.organization.geometry.tree_distance import SliceDistances
from attngeo.organization.haar.transform import forward
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.questionnaire.binary_tree import binary_tree
from attngeo.organization.questionnaire.flexible_tree import flexible_tree
from attngeo.organization.questionnaire.haar_tree import expanded_slices, haar_tree_in_place
from attngeo.organization.questionnaire.settings import Settings
from attngeo.organization.trees.tree import Tree


@dataclass(frozen=True)
class Step:
    """The state after one iteration or after the refining round.

    >>> step = organize(planted((16, 12, 8), seed=0)[0]).history[0]
    >>> step.stage, step.trees[2].size, step.likeness[2]  # the heads have no tree before the first iteration
    ('iteration', 8, None)
    """

    stage: str  # "iteration" or "refined"
    trees: tuple[Tree, ...]  # one per axis
    l1: float  # total l1 norm of the Haar coefficients along the trees
    likeness: tuple[float | None, ...]  # per axis: correlation of closeness with the previous tree, None without one


@dataclass(frozen=True)
class Settled:
    """The trees and affinities of all axes after the last step, and all steps in order."""

    trees: tuple[Tree, ...]
    affinities: tuple[Floats, ...]  # [n, n] per axis
    history: tuple[Step, ...]


def settle(values: AnyArray, settings: Settings, progress: Progress | None = None) -> Settled:
    """Run the questionnaire on a matrix or 3-tensor that `prepared` returned, and return its result.

    Tensors: the trees of queries and keys come from the initial affinities; each iteration then updates heads, queries
    and keys, in this order. Matrices: the row tree comes from the initial affinity; each iteration updates columns and
    rows. An update uses the newest trees of the other axes. Iterations stop early when no tree changes.
    """
    tensor = values.ndim == 3
    # One copy per axis with that axis outermost in memory, because distances read whole slices. With torch,
    # SliceDistances makes its own copy.
    by_axis = [values if is_torch(values) else _axis_outermost(values, axis) for axis in range(values.ndim)]
    scratch = Scratch()
    distances = [SliceDistances(copy, axis, scratch) for axis, copy in enumerate(by_axis)]

    def tree_of(affinity: Floats) -> Tree:
        return flexible_tree(affinity, settings.constant) if settings.tree == "flexible" else binary_tree(affinity)

    def total_l1() -> float:
        out = None if is_torch(values) else scratch.take(values.shape, values.dtype)
        return l1_norm(forward(values, trees, out))

    axis_order = (2, 0, 1) if tensor else (1, 0)
    refining = len(axis_order) if settings.refine else 0
    total = (2 if tensor else 1) + settings.iterations * len(axis_order) + refining
    done = 0

    def report(now_done: int | None = None) -> None:
        nonlocal done
        done = done + 1 if now_done is None else now_done
        if progress is not None:
            progress(done, total)

    initial_affinity = cosine_affinity if settings.start == "cosine" else gaussian_affinity
    affinities: dict[int, Floats] = {}
    trees: dict[int, Tree] = {}
    for axis in (0, 1) if tensor else (0,):
        affinities[axis] = initial_affinity(by_axis[axis], axis)
        trees[axis] = tree_of(affinities[axis])
        report()
    history: list[Step] = []
    used_by: dict[int, dict[int, Tree]] = {}
    for _ in range(settings.iterations):
        before = dict(trees)
        for axis in axis_order:
            others = {other: trees[other] for other in axis_order if other != axis}
            if used_by.get(axis) != others:  # the same trees would give the same distances
                used_by[axis] = others
                through = distances[axis].through(others, settings.alpha, settings.beta)
                affinities[axis] = affinity_from_distance(through, settings.epsilon)
                trees[axis] = tree_of(affinities[axis])
            report()
        same = trees == before
        history.append(_step("iteration", trees, before, history[-1].l1 if same else total_l1()))
        if same:
            report(total - refining)
            break
    if settings.refine:
        before, best = dict(trees), history[-1].l1
        for axis in axis_order:
            tree, l1 = haar_tree_in_place(expanded_slices(by_axis[axis], axis, trees, scratch))
            if l1 < best:
                trees[axis], best = tree, l1
            report()
        history.append(_step("refined", trees, before, best))
    axes = range(values.ndim)
    return Settled(tuple(trees[a] for a in axes), tuple(affinities[a] for a in axes), tuple(history))


def prepared(array: ArrayInput, device: str | None = None) -> Any:
    """Return the array, checked, as NumPy or torch; with `device`, as float64 on that torch device."""
    return checked_for_haar(_on_device(array, device), "tensor")


def _on_device(array: ArrayInput, device: str | None) -> Any:
    if device is None or (str(device) == "cpu" and not is_torch(array)):
        return array.detach() if is_torch(array) else array
    try:
        import torch
    except ImportError:
        raise InputError(f"organize: device={device!r} needs torch: pip install 'attngeo[torch]'") from None
    try:
        # Moved first, because the conversion to float64 makes it larger.
        return torch.as_tensor(array).detach().to(torch.device(device)).double()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(f"organize: device {device!r} cannot be used: {first_line(error)}") from None


def _axis_outermost(values: AnyArray, axis: int) -> AnyArray:
    """Return `values` in its own shape, with `axis` outermost in memory."""
    return np.moveaxis(slices_first(values, axis), 0, axis)


def _step(stage: str, trees: Mapping[int, Tree], before: Mapping[int, Tree], l1: float) -> Step:
    """Return the step with these trees, compared with the trees before it."""
    axes = range(len(trees))
    likeness = tuple(closeness_correlation(trees[axis], before[axis]) if axis in before else None for axis in axes)
    return Step(stage, tuple(trees[axis] for axis in axes), l1, likeness)
