"""The network tensor: the attention of all heads of a network on one input, queries × keys × heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attngeo.arguments import whole_numbers
from attngeo.arrays import Floats, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.checks import ByValue, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STAGES = ("logits", "probabilities")


def check_stage(stage: str) -> None:
    """Raise InputError unless the stage is one of `STAGES`."""
    if stage not in STAGES:
        raise InputError(f"stage {stage!r}: expected one of {', '.join(STAGES)}")


def check_stack(stack: str | None) -> None:
    """Raise InputError for several stacks, or for what is no name."""
    if stack is not None and not isinstance(stack, str):
        raise InputError(f"stack: {stack!r}, expected the name of one stack")


@dataclass(frozen=True, eq=False)
class NetworkTensor(ByValue, Drawable):
    """Attention of all heads on one input, [queries, keys, heads], with labels; heads are ordered by layer.

    `stage` states what the values are: "logits", finite because they are taken before the mask, or "probabilities",
    after it. `mask` is true where a query may attend to a key, for all heads at once or per head; None means that every
    query may attend to every key.

    >>> import numpy as np
    >>> tensor = NetworkTensor(np.eye(3)[:, :, None] * [1, 2], np.tri(3, dtype=bool), heads=("L0H0", "L0H1"))
    >>> tensor
    NetworkTensor(logits, 3 queries × 3 keys × 2 heads, masked)
    >>> tensor.probabilities(masked=True)[1, :, 0].round(2)
    array([0.27, 0.73, 0.  ])
    """

    values: NDArray[np.float32]  # [queries, keys, heads]
    mask: NDArray[np.bool_] | None = None  # [queries, keys] or [queries, keys, heads]
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()  # "L3H7"
    stage: str = "logits"
    name: str = ""  # of the model, for titles

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(checked(to_numpy(self.values), "network tensor", (3,)), np.float32)
        if not np.isfinite(values).all():
            raise InputError("network tensor: some values are too large for float32")
        object.__setattr__(self, "values", values)
        if self.stage not in STAGES:
            raise InputError(f"network tensor: stage {self.stage!r}, expected one of {', '.join(STAGES)}")
        for axis, field in enumerate(("queries", "keys", "heads")):
            labels = tuple(map(str, getattr(self, field))) or tuple(map(str, range(values.shape[axis])))
            if len(labels) != values.shape[axis]:
                raise InputError(
                    f"network tensor: {len(labels)} labels of {field}, but the values have {values.shape[axis]}"
                )
            object.__setattr__(self, field, labels)
        if self.mask is not None:
            object.__setattr__(self, "mask", _checked_mask(self.mask, values.shape))

    @property
    def shape(self) -> tuple[int, int, int]:
        queries, keys, heads = self.values.shape
        return queries, keys, heads

    def probabilities(self, masked: bool = False) -> Floats:
        """Return the softmax of the logits over the keys, [queries, keys, heads].

        masked: give keys outside the mask probability 0; otherwise the softmax runs over all keys
        """
        if self.stage != "logits":
            raise InputError("network tensor: contains probabilities, expected logits to take the softmax of")
        if masked and self.mask is None:
            raise InputError("network tensor: has no mask, so there are no masked probabilities")
        return softmax(self.values, self.mask if masked else None)

    def take(self, queries: ArrayLike, keys: ArrayLike, heads: ArrayLike) -> NetworkTensor:
        """Return the tensor at these indices of each axis, counted from 0, with the matching labels and mask."""
        axes = zip(("queries", "keys", "heads"), (queries, keys, heads), self.values.shape, strict=True)
        q, k, h = (np.array(whole_numbers(index, name, size), np.int64) for name, index, size in axes)
        mask = self.mask
        if mask is not None:
            mask = mask[np.ix_(q, k)] if mask.ndim == 2 else mask[np.ix_(q, k, h)]
        return NetworkTensor(
            self.values[np.ix_(q, k, h)],
            mask,
            tuple(self.queries[i] for i in q),
            tuple(self.keys[i] for i in k),
            tuple(self.heads[i] for i in h),
            self.stage,
            self.name,
        )

    def plot(self) -> Figure:
        """Return a figure that shows some heads as matrices."""
        return draw("tensor_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the tensor to one .npz file."""
        return save_arrays(path, "network tensor", self.as_arrays(), self.about())

    @classmethod
    def load(cls, path: str | Path) -> NetworkTensor:
        """Read a tensor that `save` wrote."""
        arrays, about = load_arrays(path, "network tensor")
        with naming_file(path):
            return cls.from_arrays(arrays, about)

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the saved file."""
        return {"values": self.values} | ({} if self.mask is None else {"mask": self.mask})

    def about(self) -> dict[str, Any]:
        """Return the labels, the stage and the name, which the saved file keeps beside the arrays."""
        fields = ("queries", "keys", "heads", "stage", "name")
        return {field: getattr(self, field) for field in fields}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> NetworkTensor:
        """Return the tensor whose `as_arrays` and `about` are given."""
        queries, keys, heads = (tuple(about.get(field, ())) for field in ("queries", "keys", "heads"))
        stage, name = str(about.get("stage", "logits")), str(about.get("name", ""))
        return cls(required_array(arrays, "values"), arrays.get("mask"), queries, keys, heads, stage, name)

    def __repr__(self) -> str:
        q, k, h = self.shape
        masked = "" if self.mask is None else ", masked"
        return f"NetworkTensor({self.stage}, {q} queries × {k} keys × {h} heads{masked})"


def softmax(logits: ArrayLike, mask: NDArray[np.bool_] | None = None) -> Floats:
    """Return exp(logits) / Σ exp(logits) along axis 1, in float64; 0 where `mask` is false.

    logits: [queries, keys] or [queries, keys, heads]
    mask:   of the same shape, or [queries, keys] for all heads
    """
    values = np.asarray(logits, np.float64)
    if mask is not None:
        mask = mask if mask.ndim == values.ndim else mask[:, :, None]
        values = np.where(mask, values, -np.inf)
    values = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(values / values.sum(1, keepdims=True))


def _checked_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = np.asarray(to_numpy(mask))
    if mask.dtype != np.bool_ or mask.shape not in (shape[:2], shape):
        raise InputError(
            f"mask: expected booleans of shape {shape[:2]} or {shape}, got {mask.dtype} of shape {mask.shape}"
        )
    empty = ~mask.any(1)
    if empty.any():
        raise InputError(f"mask: query {int(np.argwhere(empty)[0][0])} may attend to no key, expected at least one")
    return np.ascontiguousarray(mask)
