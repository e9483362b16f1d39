"""`organize`: find a tree for every axis of a network tensor or a matrix, by the questionnaire.

Each axis in turn gets a tree built from the trees of the other axes, until none changes. `Organization` is the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import finite_number, whole_number
from attngeo.arrays import AnyArray, ArrayInput, Floats, is_torch, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError, first_line
from attngeo.io.archive import from_plain, load_arrays, naming_file, required_array, save_arrays, states_options
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.affinity import affinity_from_distance, cosine_affinity, diffusion_map, gaussian_affinity
from attngeo.organization.agreement import closeness_correlation
from attngeo.organization.checks import (
    ByValue,
    as_floats,
    checked,
    checked_affinity,
    checked_axis,
    checked_for_haar,
)
from attngeo.organization.distance import SliceDistances, l1_norm, slices_first
from attngeo.organization.grow import binary_tree, expanded_slices, flexible_tree, haar_tree_in_place
from attngeo.organization.haar import forward
from attngeo.organization.tensor import NetworkTensor
from attngeo.organization.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.organization.expansion import Expansion


@dataclass(frozen=True)
class Settings:
    """The settings of one run of the questionnaire; results store them under these names."""

    iterations: int  # largest number of iterations; the questionnaire stops early when no tree changes
    alpha: float  # exponent of the level in a folder's weight
    beta: float  # exponent of the size in a folder's weight
    tree: str  # "flexible" or "binary"
    start: str  # "cosine" or "gaussian": affinity of the first trees
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
        return {} if stored == {} else asdict(from_plain(cls, stored))


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


@dataclass(frozen=True, eq=False)
class Organization(ByValue, Drawable):
    """A tensor with a tree and an affinity for every axis, and all steps of the questionnaire.

    >>> organization = organize(planted((16, 12, 8), seed=0)[0])
    >>> [tree.size for tree in organization.trees], organization.embedding(2).shape
    ([16, 12, 8], (8, 2))
    >>> orders = [tree.order for tree in organization.trees]
    >>> bool((organization.reordered() == organization.values[np.ix_(*orders)]).all())
    True
    """

    tensor: NetworkTensor | NDArray[Any]  # as given, in its original order
    trees: tuple[Tree, ...]
    affinities: tuple[Floats, ...]  # [n, n] per axis, from the last iteration
    history: tuple[Step, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # arguments of `organize`: iterations, alpha, tree, …

    @property
    def values(self) -> NDArray[Any]:
        """Return the array, without the labels of a NetworkTensor."""
        return self.tensor.values if isinstance(self.tensor, NetworkTensor) else self.tensor

    @property
    def settled(self) -> bool:
        """Tell whether the last iteration changed no tree."""
        steps = [step for step in self.history if step.stage == "iteration"]
        return len(steps) > 1 and steps[-1].trees == steps[-2].trees

    def reordered(self) -> NetworkTensor | NDArray[Any]:
        """Return the tensor with every axis in the order of its tree; a NetworkTensor keeps its labels and mask."""
        orders = [tree.order for tree in self.trees]
        if isinstance(self.tensor, NetworkTensor):
            return self.tensor.take(*orders)
        return np.asarray(self.values[np.ix_(*orders)])

    def embedding(self, dimensions: int = 3, axis: int = -1) -> Floats:
        """Return the diffusion map [n, dimensions] of an axis, by default the last one (the heads of a tensor)."""
        return diffusion_map(self.affinities[checked_axis(axis, len(self.affinities))], dimensions)

    def expand(self) -> Expansion:
        """Return the Haar expansion of the values along all trees."""
        from attngeo.organization.expansion import expand  # late, because its controls call `organize`

        return replace(expand(self.values, dict(enumerate(self.trees))), settings=self.settings)

    def plot(self, of: Literal["slices", "heads", "trees"] = "slices") -> Figure:
        """Return a figure: a few heads before and after reordering, the diffusion map of the heads, or the trees."""
        if of not in ("slices", "heads", "trees") or (of == "heads" and len(self.trees) < 3):
            options = "'slices', 'heads' or 'trees'" if len(self.trees) == 3 else "'slices' or 'trees'"
            raise InputError(f"plot: cannot plot {of!r} of a {len(self.trees)}-D array, expected {options}")
        return draw(f"{of}_figure", self)

    def view(self) -> Any:
        """Return a notebook widget that shows the attention of any head with its trees, without any server.

        It needs anywidget (`pip install 'attngeo[report]'`); without it, the figure of a few heads is returned.
        """
        return draw("attention_view", self)

    def save(self, path: str | Path) -> Path:
        """Write the organization to one .npz file and return its path."""
        arrays: dict[str, Any] = {}
        if isinstance(self.tensor, NetworkTensor):
            arrays |= self.tensor.as_arrays()
            about: dict[str, Any] = {"tensor": self.tensor.about()}
        else:
            arrays["values"], about = self.values, {"tensor": None}
        for axis, (tree, affinity) in enumerate(zip(self.trees, self.affinities, strict=True)):
            arrays |= tree.as_arrays(f"tree{axis}") | {f"affinity{axis}": affinity}
        for index, step in enumerate(self.history):
            for axis, tree in enumerate(step.trees):
                arrays |= tree.as_arrays(f"step{index}.tree{axis}")
        about["history"] = [{"stage": s.stage, "l1": s.l1, "likeness": s.likeness} for s in self.history]
        return save_arrays(path, "organization", arrays, about | {"settings": dict(self.settings)}, of=self)

    @classmethod
    def load(cls, path: str | Path) -> Organization:
        """Return the organization that `save` wrote."""
        arrays, about = load_arrays(path, "organization")
        with naming_file(path):
            values = checked(required_array(arrays, "values"), "values")
            labelled = about.get("tensor")
            tensor = values if labelled is None else NetworkTensor.from_arrays(arrays, labelled)
            axes = range(values.ndim)
            steps = []
            for index, step in enumerate(about.get("history", [])):
                trees = tuple(Tree.from_arrays(arrays, f"step{index}.tree{axis}") for axis in axes)
                steps.append(_checked_step(step, trees))
            trees = tuple(Tree.from_arrays(arrays, f"tree{axis}") for axis in axes)
            affinities = tuple(checked_affinity(required_array(arrays, f"affinity{axis}")) for axis in axes)
            for axis, (n, tree, affinity) in enumerate(zip(values.shape, trees, affinities, strict=True)):
                if not n == tree.size == len(affinity):
                    sizes = f"the tree has {tree.size}, the affinity {len(affinity)}"
                    raise InputError(f"axis {axis}: the values have {n} elements, {sizes}")
            settings = Settings.stored(about.get("settings", {}))
        return cls(tensor, trees, affinities, tuple(steps), settings)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.values.shape))
        depths = ", ".join(str(tree.depth) for tree in self.trees)
        l1 = f", l1 {self.history[-1].l1:.6g}" if self.history else ""
        return f"Organization({shape}, trees of {depths} levels, {len(self.history)} steps{l1})"


def _checked_step(stored: Mapping[str, Any], trees: tuple[Tree, ...]) -> Step:
    """Return the step stored in a file, with these trees."""
    stage, l1, likeness = stored["stage"], stored["l1"], tuple(stored["likeness"])
    if stage not in ("iteration", "refined"):
        raise InputError(f"history: stage is {stage!r}, expected 'iteration' or 'refined'")
    if type(l1) not in (int, float):
        raise InputError(f"history: l1 is {l1!r}, expected a number")
    if len(likeness) != len(trees) or not all(value is None or type(value) in (int, float) for value in likeness):
        raise InputError(f"history: likeness is {likeness!r}, expected a number or null for each of {len(trees)} axes")
    return Step(stage, trees, l1, likeness)


@accepts_progress_bar
@states_options
def organize(
    tensor: NetworkTensor | ArrayInput,
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
    """Return a tree for every axis of a 3-tensor or a matrix, such that it varies slowly along all trees at once.

    Each iteration builds the tree of every axis from the newest trees of the other axes: heads, queries, keys of a
    tensor, columns and rows of a matrix. Iterations stop early when no tree changes.

    iterations:  largest number of iterations; 3 for tensors and 10 for matrices by default
    alpha, beta: exponents of the folder weights (|F|/n)^β · 2^{−α·level}; 0 and 1 for tensors, 1 and 0 for matrices
    tree:        "flexible" trees are joined from the elements up, "binary" trees are cut from the root down
    start:       affinity of the first trees
    constant:    of the flexible tree: a larger one makes it harder to join large groups
    epsilon:     width of the affinity kernel, as a multiple of the median distance
    refine:      end with one round that rebuilds every tree to lower the total l1 norm of the Haar coefficients, and
                 keeps a new tree if it does; by default for tensors with flexible trees
    device:      torch device to compute on, for example "cuda"
    progress:    `progress(done, total)` is called after every axis; True draws a progress bar

    >>> array, trees = planted((24, 20, 12), seed=0)
    >>> organization = organize(array)
    >>> organization.expand().entropy() < 1.1 * expand(array, trees).entropy()
    True
    """
    array = tensor.values if isinstance(tensor, NetworkTensor) else tensor
    values = checked_for_haar(_on_device(array, device), "tensor")
    settings = Settings.of(
        values.ndim,
        iterations=iterations,
        alpha=alpha,
        beta=beta,
        tree=tree,
        start=start,
        constant=constant,
        epsilon=epsilon,
        refine=refine,
    )
    trees, affinities, history = _questionnaire(values, settings, progress if callable(progress) else None)
    # A NumPy input is kept as it is, rather than copied back from the device.
    kept = tensor if isinstance(tensor, NetworkTensor) else to_numpy(as_floats(array)) if is_torch(values) else values
    axes = range(values.ndim)
    return Organization(
        kept,
        tuple(trees[axis] for axis in axes),
        tuple(affinities[axis] for axis in axes),
        tuple(history),
        asdict(settings),
    )


def _questionnaire(
    values: AnyArray, settings: Settings, progress: Progress | None
) -> tuple[dict[int, Tree], dict[int, Floats], list[Step]]:
    """Return the tree and the affinity [n, n] of every axis after the last step, and all steps in order.

    Tensors: the trees of queries and keys come from the initial affinities; each iteration then updates heads, queries
    and keys, in this order. Matrices: the row tree comes from the initial affinity; each iteration updates columns and
    rows. An update uses the newest trees of the other axes. Iterations stop early when no tree changes.
    """
    first, axis_order = ((0, 1), (2, 0, 1)) if values.ndim == 3 else ((0,), (1, 0))
    refining = len(axis_order) if settings.refine else 0
    total, done = len(first) + settings.iterations * len(axis_order) + refining, 0

    def report(now_done: int | None = None) -> None:
        nonlocal done
        done = done + 1 if now_done is None else now_done
        if progress is not None:
            progress(done, total)

    affinities: dict[int, Floats] = {}
    trees: dict[int, Tree] = {}

    def update(axis: int, affinity: Floats) -> None:
        affinities[axis] = affinity
        flexible = settings.tree == "flexible"
        trees[axis] = flexible_tree(affinity, settings.constant) if flexible else binary_tree(affinity)

    initial_affinity = cosine_affinity if settings.start == "cosine" else gaussian_affinity
    for axis in first:
        update(axis, initial_affinity(values, axis))
        report()
    history: list[Step] = []
    used: dict[int, list[Tree]] = {}  # axis → the trees that its own was last built from
    known = {axis: SliceDistances() for axis in axis_order}
    for _ in range(settings.iterations):
        before = dict(trees)
        for axis in axis_order:
            others = [trees[other] for other in sorted(axis_order) if other != axis]
            if used.get(axis) != others:  # the same trees would give the same distances
                used[axis] = others
                distances = known[axis].through(slices_first(values, axis), others, settings.alpha, settings.beta)
                update(axis, affinity_from_distance(distances, settings.epsilon))
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
    return trees, affinities, history


def _step(stage: str, trees: Mapping[int, Tree], before: Mapping[int, Tree], l1: float) -> Step:
    """Return the step with these trees, compared with the trees before it."""
    axes = range(len(trees))
    likeness = tuple(closeness_correlation(trees[axis], before[axis]) if axis in before else None for axis in axes)
    return Step(stage, tuple(trees[axis] for axis in axes), l1, likeness)


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
