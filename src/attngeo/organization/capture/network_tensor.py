"""The network tensor: what every head of a network says about every pair of positions of one input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.checks import checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = ("logits", "probabilities")


@dataclass(frozen=True, eq=False)
class NetworkTensor(Drawable):
    """Queries × keys × heads of one input, layer-major over the heads, with the labels of its axes.

    `stage` says what the values are: attention logits, finite before the mask, or probabilities after it. `mask` is
    true where a query may attend, for all heads at once or head by head; None where it may everywhere.

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
    name: str = ""  # the model, for titles

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(checked(to_numpy(self.values), "network tensor", (3,)), np.float32)
        if not np.isfinite(values).all():
            raise InputError("network tensor: holds numbers too large for float32")
        object.__setattr__(self, "values", values)
        if self.stage not in STAGES:
            raise InputError(f"network tensor: stage {self.stage!r}, expected one of {', '.join(STAGES)}")
        for axis, field in enumerate(("queries", "keys", "heads")):
            labels = tuple(map(str, getattr(self, field))) or tuple(map(str, range(values.shape[axis])))
            if len(labels) != values.shape[axis]:
                raise InputError(f"network tensor: {len(labels)} labels of {field}, {values.shape[axis]} in the values")
            object.__setattr__(self, field, labels)
        if self.mask is not None:
            object.__setattr__(self, "mask", _checked_mask(self.mask, values.shape))

    @property
    def shape(self) -> tuple[int, int, int]:
        queries, keys, heads = self.values.shape
        return queries, keys, heads

    def probabilities(self, masked: bool = False) -> Floats:
        """[queries, keys, heads] softmax of the logits over the keys, of whole rows or of what the mask leaves."""
        if self.stage != "logits":
            raise InputError("network tensor: holds probabilities already, the softmax is taken of logits")
        if masked and self.mask is None:
            raise InputError("network tensor: has no mask, there are no masked probabilities")
        return softmax(self.values, self.mask if masked else None)

    def take(self, queries: Any, keys: Any, heads: Any) -> NetworkTensor:
        """The tensor with its axes taken at these indices, labels and mask with them."""
        q, k, h = (np.asarray(index, np.int64) for index in (queries, keys, heads))
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
        """A few heads as matrices, their names above."""
        return draw("tensor_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write to one .npz file."""
        return save_arrays(path, "network tensor", self.as_arrays(), self.about())

    @classmethod
    def load(cls, path: str | Path) -> NetworkTensor:
        """Read what `save` wrote."""
        arrays, about = load_arrays(path, "network tensor")
        with naming_file(path):
            return cls.from_arrays(arrays, about)

    def as_arrays(self) -> dict[str, Any]:
        return {"values": self.values} | ({} if self.mask is None else {"mask": self.mask})

    def about(self) -> dict[str, Any]:
        fields = ("queries", "keys", "heads", "stage", "name")
        return {field: getattr(self, field) for field in fields}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> NetworkTensor:
        queries, keys, heads = (tuple(about.get(field, ())) for field in ("queries", "keys", "heads"))
        stage, name = str(about.get("stage", "logits")), str(about.get("name", ""))
        return cls(required_array(arrays, "values"), arrays.get("mask"), queries, keys, heads, stage, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NetworkTensor):
            return NotImplemented
        same_mask = (self.mask is None) == (other.mask is None) and (
            self.mask is None or other.mask is None or np.array_equal(self.mask, other.mask)
        )
        return same_mask and self.about() == other.about() and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        q, k, h = self.shape
        masked = "" if self.mask is None else ", masked"
        return f"NetworkTensor({self.stage}, {q} queries × {k} keys × {h} heads{masked})"


def softmax(logits: Any, mask: Any = None) -> Floats:
    """exp over its sum along axis 1, in float64; where `mask` is false nothing is given."""
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
            f"mask: expected true and false of shape {shape[:2]} or {shape}, got {mask.dtype} {mask.shape}"
        )
    blank = ~mask.any(1)
    if blank.any():
        raise InputError(f"mask: query {int(np.argwhere(blank)[0][0])} may attend to nothing, every row needs a key")
    return np.ascontiguousarray(mask)
