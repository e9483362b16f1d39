"""`organize`: find a tree for every axis of a network tensor or a matrix; `Organization` is its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import ArrayInput, Floats, is_torch, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays, states_options
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.affinity import diffusion_map
from attngeo.organization.checks import as_floats, checked, checked_affinity, checked_axis
from attngeo.organization.expansion import Expansion, expand
from attngeo.organization.questionnaire import Settings, Step, prepared, settle
from attngeo.organization.tensor import NetworkTensor
from attngeo.organization.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Organization(Drawable):
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Organization):
            return NotImplemented
        labelled = isinstance(self.tensor, NetworkTensor)
        if labelled != isinstance(other.tensor, NetworkTensor):
            return False
        same = self.tensor == other.tensor if labelled else np.array_equal(self.values, other.values)
        return (
            bool(same)
            and self.trees == other.trees
            and self.history == other.history
            and dict(self.settings) == dict(other.settings)
            and all(map(np.array_equal, self.affinities, other.affinities))
        )

    __hash__ = None  # type: ignore[assignment]

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
    network = tensor if isinstance(tensor, NetworkTensor) else None
    array = tensor.values if isinstance(tensor, NetworkTensor) else tensor
    values = prepared(array, device)
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
    result = settle(values, settings, progress if callable(progress) else None)
    # A NumPy input is kept as it is, rather than copied back from the device.
    kept = network if network is not None else to_numpy(as_floats(array)) if is_torch(values) else values
    return Organization(kept, result.trees, result.affinities, result.history, asdict(settings))
