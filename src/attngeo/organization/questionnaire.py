"""The questionnaire: each axis organised by the trees of the others, in turn, until they settle."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from attngeo.errors import InputError, first_line
from attngeo.organization.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.agreement import closeness_correlation
from attngeo.organization.arrays import Floats, Scratch, at_home, checked, is_torch, real, slices_first
from attngeo.organization.distance import SliceDistances
from attngeo.organization.flexible import binary_tree, flexible_tree
from attngeo.organization.haar import forward
from attngeo.organization.joining import expanded_slices, haar_tree
from attngeo.organization.l1 import l1_norm
from attngeo.organization.organization import Organization, Step
from attngeo.organization.tensor import NetworkTensor
from attngeo.organization.tree import Tree
from attngeo.organization.watched import Progress, watched


@watched
def organize(
    tensor: NetworkTensor | Any,
    *,
    iterations: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    tree: Literal["flexible", "binary"] = "flexible",
    start: Literal["cosine", "gaussian"] = "cosine",
    constant: float = 1.0,
    epsilon: float = 1.0,
    refine: bool | None = None,
    device: str | None = None,
    progress: Progress | bool | None = None,
) -> Organization:
    """Find a tree for every axis of a 3-tensor or a matrix such that it varies slowly along all of them at once.

    Tensors: 3 iterations with α 0, β 1, each heads, queries, keys; matrices: 10 with α 1, β 0, each columns, rows.
    Stops early when no tree changes. `refine` (tensors with flexible trees, unless told otherwise) ends with one round
    in which every tree is joined anew for the total l1 of the coefficients (see joining.py) and kept if that is less.
    `device` names a torch device, "cuda" for one; `progress(done, total)` is called after every axis, and
    `progress=True` draws a bar.

    >>> array, trees = planted((24, 20, 12), seed=0)
    >>> found = organize(array)
    >>> found.expand().entropy() < 1.1 * expand(array, trees).entropy()
    True
    """
    network = tensor if isinstance(tensor, NetworkTensor) else None
    values = checked(_placed(tensor if network is None else network.values, device), "tensor")
    solid = values.ndim == 3
    iterations = (3 if solid else 10) if iterations is None else iterations
    alpha = (0.0 if solid else 1.0) if alpha is None else alpha
    beta = (1.0 if solid else 0.0) if beta is None else beta
    refine = (solid and tree == "flexible") if refine is None else refine
    if iterations < 1:
        raise InputError(f"organize: expected at least one iteration, got {iterations}")
    if tree not in ("flexible", "binary") or start not in ("cosine", "gaussian"):
        raise InputError(f"organize: no tree {tree!r} or start {start!r}; flexible or binary, cosine or gaussian")

    # One copy an axis whose memory begins with it, made once: every distance reads whole slices. On a device the
    # distances lay out their own.
    by_axis = [values if is_torch(values) else _slices_lying_first(values, axis) for axis in range(values.ndim)]
    scratch = Scratch()
    distances = [SliceDistances(copy, axis, scratch) for axis, copy in enumerate(by_axis)]

    def grow(affinity: Floats) -> Tree:
        return flexible_tree(affinity, constant) if tree == "flexible" else binary_tree(affinity)

    def total_l1() -> float:
        out = None if is_torch(values) else scratch.take(values.shape, values.dtype)
        return l1_norm(forward(values, trees, out))

    turns = (2, 0, 1) if solid else (1, 0)
    total = (2 if solid else 1) + iterations * (len(turns)) + (len(turns) if refine else 0)
    done = 0

    def report(upto: int | None = None) -> None:
        nonlocal done
        done = done + 1 if upto is None else upto
        if callable(progress):
            progress(done, total)

    first = cosine_affinity if start == "cosine" else gaussian_affinity
    affinities: dict[int, Floats] = {}
    trees: dict[int, Tree] = {}
    for axis in (0, 1) if solid else (0,):
        affinities[axis] = first(by_axis[axis], axis)
        trees[axis] = grow(affinities[axis])
        report()
    history: list[Step] = []
    seen_by: dict[int, dict[int, Tree]] = {}
    for _ in range(iterations):
        before = dict(trees)
        for axis in turns:
            others = {other: trees[other] for other in turns if other != axis}
            if seen_by.get(axis) != others:  # the same trees would show the same distances
                seen_by[axis] = others
                affinities[axis] = affinity_from_distance(distances[axis].through(others, alpha, beta), epsilon)
                trees[axis] = grow(affinities[axis])
            report()
        same = trees == before
        history.append(_step("iteration", trees, before, history[-1].l1 if same else total_l1()))
        if same:
            report(total - (len(turns) if refine else 0))
            break
    if refine:
        before, best = dict(trees), history[-1].l1
        for axis in turns:
            found, l1 = haar_tree(expanded_slices(by_axis[axis], axis, trees, scratch))
            if l1 < best:
                trees[axis], best = found, l1
            report()
        history.append(_step("refined", trees, before, best))
    axes = range(values.ndim)
    # What came as numpy is not fetched from a device again.
    kept = network if network is not None else at_home(real(tensor)) if is_torch(values) else values
    ways = {"iterations": int(iterations), "alpha": float(alpha), "beta": float(beta), "tree": tree, "start": start}
    ways |= {"constant": float(constant), "epsilon": float(epsilon), "refine": bool(refine)}
    return Organization(kept, tuple(trees[a] for a in axes), tuple(affinities[a] for a in axes), tuple(history), ways)


def _placed(array: Any, device: str | None) -> Any:
    """The values where the work is to be done, float64 on a device."""
    if device is None or (str(device) == "cpu" and not is_torch(array)):
        return array.detach() if is_torch(array) else array
    try:
        import torch
    except ImportError:
        raise InputError(f"organize: device={device!r} needs torch: pip install 'attngeo[torch]'") from None
    try:
        return torch.as_tensor(array).detach().to(device).double()  # moved before it is made twice as large
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(f"organize: device {device!r} cannot be used: {first_line(error)}") from None


def _slices_lying_first(values: Any, axis: int) -> Any:
    """`values` in its own shape, laid out in memory with `axis` outermost."""
    return np.moveaxis(slices_first(values, axis), 0, axis)


def _step(stage: str, trees: dict[int, Tree], before: dict[int, Tree], l1: float) -> Step:
    axes = range(len(trees))
    likeness = tuple(closeness_correlation(trees[axis], before[axis]) if axis in before else None for axis in axes)
    return Step(stage, tuple(trees[axis] for axis in axes), l1, likeness)
