"""`Storage`, the base of the storage classes, and the records they exchange with the rest of `layout`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.sources.checkpoint import ReadRequest

Shapes = Mapping[str, tuple[int, ...]]  # by tensor name


@dataclass(frozen=True)
class Heads:
    """The heads of one layer: H query heads, G key heads, all of size r.

    G divides H, and key head g is read by the query heads g·H/G, …, (g + 1)·H/G − 1.
    """

    queries: int
    keys: int
    size: int
    gated: bool = False  # query rows are [H, (query, output gate), r]
    numbers: tuple[int, ...] | None = None  # of the query heads in the full model, for a pruned layer; None: 0, 1, 2, …

    @property
    def group(self) -> int:
        """Return m = H/G, the number of query heads that share one key head."""
        return self.queries // self.keys


@dataclass(frozen=True)
class DeclaredHeads:
    """What the config, or the option `num_heads`, declares about the heads of one layer."""

    source: str  # the config key that gave `queries`, or "num_heads"; for error messages
    queries: int
    scope: Scope | None  # the layer's part of the config; None: there is no config
    cross: bool
    gated_type: bool = False  # models of this type may store output gates beside the queries


class ValueRows(Enum):
    """Where the value projection is stored."""

    OWN_TENSOR = "in a tensor of its own"
    LAST_ROWS = "in the last rows of the tensor that holds the keys"
    INTERLEAVED = "between the queries and keys of each head"


# The name of a value projection with a tensor of its own, by the name of the key projection beside it.
VALUE_NAMES = {
    "key": "value",
    "k": "v",
    "k_proj": "v_proj",
    "k_lin": "v_lin",
    "linear_k": "linear_v",
    "Wk": "Wv",
    "wk": "wv",
    "key_proj": "value_proj",
    "project_k": "project_v",
    "to_k": "to_v",
}


@dataclass(frozen=True)
class Storage(ABC):
    """One way to store the queries and keys of a layer; a subclass describes one way, an instance one layer.

    A subclass answers three questions: how many heads there are (`count_heads`), which bytes have to be read
    (`requests`), and which rows belong to which head (`views`). Arrays may be NumPy arrays or torch tensors.
    """

    query: str  # names of the tensors that hold the queries and the keys; fused storage: the same name twice
    key: str
    others: Mapping[str, str] = field(default_factory=dict)  # role → name of a further tensor (latent attention)
    transposed: bool = False  # tensors are stored [in, out] (Conv1D, XLNet) instead of [out, in]

    value_rows: ClassVar[ValueRows]
    has_views: ClassVar[bool] = True  # False: queries and keys are products of tensors, so there is nothing to view

    # How many heads.

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads | None) -> Heads | None:
        """Return the heads that the declared counts and the shapes agree on; None where no count is declared.

        Raises LayoutError where the two contradict each other.
        """
        return None if declared is None else self.settle_heads(shapes, declared)

    @abstractmethod
    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        """Return the heads that `declared` and the shapes agree on."""

    def single_head(self, shapes: Shapes) -> Heads:
        """Return one head that holds the whole layer, for a layer whose head count is unknown."""
        raise LayoutError(
            f"{self.query}: heads are interleaved, so the head count is needed: give num_heads (--num-heads)"
        )

    # Which bytes to read.

    @abstractmethod
    def requests(self, heads: Heads) -> list[ReadRequest]:
        """Return the reads that `factors` needs, in the order in which they are best made."""

    # Which rows belong to which head.

    @abstractmethod
    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        """Return queries [*g, m, r, d] and keys [*g, r, d] as views of `tensors`.

        The axes *g (one axis or two) count the key heads; m query heads share one key head. `tensors` may hold just
        the rows that `requests` asks for.
        """

    def factors(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        """Return queries [H, d_q, r] and keys [G, d_k, r]: views of `tensors` where their strides allow it."""
        query, key = self.views(tensors, heads)
        return _heads_first(query, heads.queries), _heads_first(key, heads.keys)

    # Helpers.

    def check_rows(self, shapes: Shapes, heads: Heads) -> None:
        """Raise LayoutError unless the tensors have as many rows as `heads` need."""
        for name, expected in self.expected_rows(heads).items():
            rows, _ = self.matrix_shape(name, shapes)
            if rows != expected:
                raise LayoutError(f"{name}: {rows} rows, but the config declares heads that need {expected}")

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        """Return the number of rows that each tensor has with these heads."""
        raise LayoutError(f"{self.query}: heads of a layer with this kind of storage cannot be removed")

    @property
    def inputs(self) -> tuple[str, str]:
        """Return the names of the tensors that multiply the token vectors, on the query and on the key side."""
        return self.query, self.key

    def widths_differ(self, shapes: Shapes) -> bool:
        """Return True where queries and keys read vectors of two widths, hence two sequences."""
        return False

    def matrix_shape(self, name: str, shapes: Shapes) -> tuple[int, int]:
        """Return the shape (out, in) of the projection in tensor `name`; LayoutError where it is not a matrix."""
        shape = shapes[name]
        kernel = shape[2:]
        is_matrix = len(shape) >= 2 and (self.transposed or all(n == 1 for n in kernel))  # 1×1 convolutions are
        if not is_matrix or 0 in shape:
            expected = "a matrix [in, out]" if self.transposed else "a matrix [out, in]"
            raise LayoutError(f"{name}: shape {list(shape)}, expected {expected}")
        return (math.prod(shape[1:]), shape[0]) if self.transposed else (shape[0], shape[1])

    def matrix(self, tensor: Array) -> Array:
        """Return a stored tensor as a matrix [out, in]; the axes of a 1×1 convolution's kernel are dropped."""
        flat: Array = tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
        if not self.transposed:
            return flat
        rows: Array = flat.T
        return rows


def split_rows(rows: Array, *sizes: int) -> Array:
    """Return rows [s1·s2·…, d] as [s1, s2, …, d], a view.

    >>> import numpy as np
    >>> split_rows(np.zeros((6, 5)), 2, 3).shape
    (2, 3, 5)
    """
    split: Array = rows.reshape(*sizes, rows.shape[-1])
    return split


def _heads_first(rows: Array, count: int) -> Array:
    """[..., r, d] → [count, d, r]."""
    heads: Array = rows.reshape(count, rows.shape[-2], rows.shape[-1]).swapaxes(1, 2)
    return heads
