"""The questionnaire: each axis in turn gets a tree built from the trees of the other axes, until none changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from attngeo.arguments import finite_number, whole_number
from attngeo.arrays import AnyArray, ArrayInput, Floats, is_torch
from attngeo.errors import InputError, first_line
from attngeo.io.progress import Progress
from attngeo.organization.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.agreement import closeness_correlation
from attngeo.organization.checks import checked_for_haar
from attngeo.organization.distance import SliceDistances, l1_norm, slices_first
from attngeo.organization.grow import binary_tree, expanded_slices, flexible_tree, haar_tree_in_place
from attngeo.organization.haar import forward
from attngeo.organization.tree import Tree


@dataclass(frozen=True)
class Settings:
    """The settings of one run of the questionnaire; results store them under these names."""

    iterations: int  # largest number of iterations; the questionnaire stops early when no tree changes
    alpha: float  # exponent of the level in a folder's weight
    beta: float  # exponent of the size in a folder's weight
    tree: Literal["flexible", "binary"]
    start: Literal["cosine", "gaussian"]  # affinity of the first trees
    constant: float  # of the flexible tree: a larger one makes it harder to join large groups
    epsilon: float  # width of the affinity kernel, as a multiple of the median distance
    refine: bool  # end with a round that lowers the total l1 norm of the Haar coefficients

    def __post_init__(self) -> None:
        if whole_number(self.iterations, "iterations", None) < 1:
            raise InputError(f"organize: expected at least one iteration, got {self.iterations}")
        for name in ("alpha", "beta", "constant", "epsilon"):
            object.__setattr__(self, name, finite_number(getattr(self, name), name))
        if self.tree not in ("flexible", "binary"):
            raise InputError(f"organize: unknown tree {self.tree!r}, expected 'flexible' or 'binary'")
        if self.start not in ("cosine", "gaussian"):
            raise InputError(f"organize: unknown start {self.start!r}, expected 'cosine' or 'gaussian'")

    @classmethod
    def of(cls, dimensions: int, **given: Any) -> Settings:
        """Return the settings that are given, with the defaults of a matrix (2 dimensions) or a tensor (3) for None."""
        tensor = dimensions == 3
        defaults: dict[str, Any] = {"iterations": 3, "alpha": 0.0, "beta": 1.0}
        if not tensor:
            defaults = {"iterations": 10, "alpha": 1.0, "beta": 0.0}
        defaults["refine"] = tensor and given["tree"] == "flexible"
        return cls(**{name: defaults[name] if value is None else value for name, value in given.items()})

    @classmethod
    def stored(cls, stored: object) -> dict[str, Any]:
        """Return the settings stored in a file, checked; {} stands for trees that were given rather than fitted."""
        if stored == {}:
            return {}
        names = [field.name for field in fields(cls)]
        if not isinstance(stored, Mapping) or set(stored) != set(names):
            raise InputError(f"settings: expected {', '.join(names)}, found {stored!r}")
        return asdict(cls(**stored))


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

    def tree_of(affinity: Floats) -> Tree:
        return flexible_tree(affinity, settings.constant) if settings.tree == "flexible" else binary_tree(affinity)

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
        affinities[axis] = initial_affinity(values, axis)
        trees[axis] = tree_of(affinities[axis])
        report()
    history: list[Step] = []
    used_by: dict[int, dict[int, Tree]] = {}
    known = {axis: SliceDistances() for axis in axis_order}
    for _ in range(settings.iterations):
        before = dict(trees)
        for axis in axis_order:
            others = {other: trees[other] for other in axis_order if other != axis}
            if used_by.get(axis) != others:  # the same trees would give the same distances
                used_by[axis] = others
                slices = slices_first(values, axis)
                distances = known[axis].through(
                    slices, [others[a] for a in sorted(others)], settings.alpha, settings.beta
                )
                affinities[axis] = affinity_from_distance(distances, settings.epsilon)
                trees[axis] = tree_of(affinities[axis])
            report()
        same = trees == before
        history.append(_step("iteration", trees, before, history[-1].l1 if same else l1_norm(forward(values, trees))))
        if same:
            report(total - refining)
            break
    if settings.refine:
        before, best = dict(trees), history[-1].l1
        for axis in axis_order:
            tree, l1 = haar_tree_in_place(expanded_slices(values, axis, trees))
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


def _step(stage: str, trees: Mapping[int, Tree], before: Mapping[int, Tree], l1: float) -> Step:
    """Return the step with these trees, compared with the trees before it."""
    axes = range(len(trees))
    likeness = tuple(closeness_correlation(trees[axis], before[axis]) if axis in before else None for axis in axes)
    return Step(stage, tuple(trees[axis] for axis in axes), l1, likeness)
