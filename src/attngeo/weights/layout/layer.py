"""`Layer`: one attention layer, from where it stands in a model to its queries and keys, head by head."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.facts import Family, Scope
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.layout.storage import Heads, Storage
from attngeo.weights.layout.table import Layout
from attngeo.weights.sources.checkpoint import FloatArray, ReadRequest

UNREAD: Any = None  # in place of the arrays of a layer that was found, but not read

# Returns the array of a request: `Checkpoint.read`, or a function that reads a live model into tensors.
Read = Callable[[ReadRequest], Any]

# "7", or torchvision's "encoder_layer_7". More digits than a layer number can have are a name.
_NUMBER = re.compile(r"^((?:\w*(?:layer|block)_)?)(\d{1,9})$")


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm whose output the projections read. Folding it in gives C diag(g) M diag(g) C, with C only if centred."""

    gain: FloatArray  # [d]
    centred: bool  # True: LayerNorm, which subtracts the mean (C = I − 11ᵀ/d); False: RMSNorm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and _same_fields(self, other)


@dataclass(frozen=True)
class StoredNorm:
    """The tensor that holds the gain of the norm before an attention, and how to read it."""

    tensor: str
    centred: bool  # LayerNorm, not RMSNorm
    offset: bool  # the tensor holds gain − 1
    own_block: bool = False  # in the block of its attention, as in pre-norm models


@dataclass(frozen=True)
class QKNorms:
    """The norms on the queries and keys of a layer. What of them is linear is part of the factors of its form.

    A norm multiplies by a gain and divides by a positive number per token, which does not change who is compared with
    whom. LayerNorm also subtracts the mean, which is linear as well.
    """

    gains: tuple[str | None, str | None] = (None, None)  # names of the tensors with the gains of queries and keys
    offset: bool = False  # gains are stored as gain − 1
    centred: bool = False  # the norms are LayerNorms, which subtract the mean before they multiply by the gain
    gainless: bool = False  # the norms are LayerNorms without a gain

    def include(self, query: Array, key: Array, tensors: Mapping[str, Array]) -> None:
        """Apply the linear part of the norms to query [H, d, r] and key [G, d, r], in place.

        tensors: the gains, by name
        """
        for name, side in zip(self.gains, (query, key), strict=True):
            if name is not None:
                self._multiply(name, side, tensors[name] + 1 if self.offset else tensors[name])
            elif self.gainless:
                side -= side.mean(2, keepdims=True)  # [heads, d, 1]

    def _multiply(self, name: str, side: Array, gain: Array) -> None:
        """Multiply side [heads, d, r] in place by a gain per dimension [r], or per head and dimension [heads·r]."""
        heads, _, size = side.shape
        count = math.prod(gain.shape)
        if count not in (size, heads * size):
            raise LayoutError(f"{name}: shape {list(gain.shape)}, expected {size} or {heads}×{size} gains")
        if self.centred:  # over what the norm reads: one head, or all heads for a gain of shape [heads·r]
            all_heads = count > size and len(gain.shape) == 1
            side -= side.mean((0, 2) if all_heads else 2, keepdims=True)  # [1, d, 1] or [heads, d, 1]
        side *= gain.reshape(count // size, 1, size)


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One attention layer, for row vectors x: logits = x M_h xᵀ, M_h = query[h] key[h // (H/G)]ᵀ.

    The names and shapes in a checkpoint say where a layer is and how its heads are stored; `read` adds the arrays. They
    are float32 NumPy arrays, or of the kind that the function given to `read` returns, such as tensors of a model in
    training. Layers are equal if they stand in the same place, are stored alike and have equal arrays.

    >>> layer = next(iter(attngeo.attention_layers(attngeo.bundled("encoder"))))
    >>> layer
    Layer(encoder L0, query [4, 128, 32], key [4, 128, 32])
    """

    stack: str = ""  # "encoder", "decoder", "cross", "text", "vision", "audio", …
    layer: int = 0  # from 0 within the stack
    query: FloatArray = UNREAD  # [H, d_q, r], gains of QK-norms included
    key: FloatArray = UNREAD  # [G, d_k, r], H a multiple of G
    heads_known: bool = True  # False: the head count is unknown, and H = G = 1 holds the whole layer
    cross: bool = False  # queries and keys read different sequences
    rotary: RotaryPairs | None = None  # what rotates in the heads of this layer; None: nothing, or not known
    rotary_known: bool = False  # False: the layer may rotate, but how was never checked against a live model
    norm: Norm | None = None  # the norm before the attention; None: not asked for, or not known

    # Where it is in the model, and what is known of this part of the model.
    path: str = ""  # "encoder.layer.3.attention.self"
    scope: Scope | None = field(default=None, compare=False)  # the part of the config that describes it

    # How it is stored. Of a layer of a live model this may not be known.
    row: Layout | None = field(default=None, compare=False)  # the row of the table; None: none fits
    storage: Storage = field(default_factory=Storage)
    heads: Heads | None = None  # None: not counted yet, or no count is known
    qk_norms: QKNorms = field(default_factory=QKNorms)
    stored_norm: StoredNorm | None = None  # the norm before the attention, if it is to be read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and _same_fields(self, other)

    def __repr__(self) -> str:
        if self.query is UNREAD:
            return f"Layer({self.stack} L{self.layer}, not read)"
        known = "" if self.heads_known else ", heads not known"
        shapes = f"query {list(self.query.shape)}, key {list(self.key.shape)}"
        return f"Layer({self.stack} L{self.layer}, {shapes}{known})"

    @property
    def facts(self) -> Family:
        """Return the facts about the model type of its part of the model."""
        return Family() if self.scope is None else self.scope.facts

    @property
    def group_size(self) -> int:
        """Return H/G, the number of query heads that share one key head."""
        return len(self.query) // len(self.key)

    @property
    def groups(self) -> int:
        """Return G, the number of key heads."""
        return len(self.key)

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """Return the numbers of the query heads in the full model, for a pruned layer; None: 0, 1, 2, …"""
        return None if self.heads is None else self.heads.numbers

    @property
    def head_numbers(self) -> Sequence[int]:
        """Return the number of each query head; a pruned layer keeps the numbers of the full model."""
        return range(len(self.query)) if self.numbers is None else self.numbers

    @property
    def qk_norm(self) -> bool:
        """Return whether queries and keys are normalised before their product; both arrays include the gains."""
        return self.facts.qk_norm or any(self.qk_norms.gains)

    @property
    def known(self) -> bool:
        """Return whether the table of layouts knows how the layer is stored."""
        return self.row is not None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the query and key tensors; one name where the two are fused."""
        return tuple(dict.fromkeys((self.storage.query, self.storage.key)))

    @property
    def indices(self) -> tuple[int, ...]:
        """Return the numbers in the path, outermost first."""
        return tuple(int(match[2]) for word in self.path.split(".") if (match := _NUMBER.fullmatch(word)))

    @property
    def template(self) -> str:
        """Return the path with "*" in place of its numbers; the layers of one stack share it."""
        return path_template(self.path)

    @property
    def requests(self) -> list[ReadRequest]:
        """Return the reads that `read` makes, in the order in which it makes them."""
        assert self.heads is not None
        norm = [] if self.stored_norm is None else [ReadRequest(self.stored_norm.tensor)]
        gains = [ReadRequest(name) for name in self.qk_norms.gains if name is not None]
        return [*norm, *self.storage.requests(self.heads), *gains]

    def read(self, read: Read) -> Layer:
        """Return the layer with its arrays, which `read` returns one by one and which are changed in place."""
        assert self.heads is not None
        tensors = {request.name: read(request) for request in self.requests}
        query, key = self.storage.factors(tensors, self.heads)  # [H, d_q, r], [G, d_k, r]
        self.qk_norms.include(query, key, tensors)
        norm = None
        if self.stored_norm is not None:
            gain = tensors[self.stored_norm.tensor]
            norm = Norm(gain + 1 if self.stored_norm.offset else gain, self.stored_norm.centred)
        return replace(self, query=query, key=key, norm=norm)


def layer_form_factors(query: Array, key: Array, axis: int = 0) -> tuple[Array, Array]:
    """Return the factors of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ, both with G heads along `axis`.

    query: H heads along `axis`
    key:   G heads along `axis`; key head g is read by the query heads g·H/G, …, (g + 1)·H/G − 1

    >>> query, key = np.array([[1.0], [2.0], [4.0], [8.0]]), np.array([[5.0], [7.0]])
    >>> [side.ravel().tolist() for side in layer_form_factors(query, key)]
    [[3.0, 12.0], [5.0, 7.0]]
    """
    if query.shape[axis] == key.shape[axis]:
        return query, key
    groups = key.shape[axis]
    summed: Array = query.reshape(*query.shape[:axis], groups, -1, *query.shape[axis + 1 :]).sum(axis + 1)
    return summed, key


def path_template(path: str) -> str:
    """Return `path` with "*" in place of its numbers.

    >>> path_template("encoder.layer.3.attention.self")
    'encoder.layer.*.attention.self'
    """
    return ".".join(_NUMBER.sub(r"\1*", word) for word in path.split("."))


def join_path(path: str, leaf: str) -> str:
    """Return the name `leaf` below `path`; either may be empty."""
    return f"{path}.{leaf}" if path and leaf else path or leaf


def _same_fields(a: Any, b: Any) -> bool:
    """Return whether two dataclasses of one type have equal fields; arrays are equal in shape and in all entries."""
    for name in (each.name for each in fields(a) if each.compare):
        x, y = getattr(a, name), getattr(b, name)
        if hasattr(x, "shape") and hasattr(y, "shape"):
            if x.shape != y.shape or not bool((x == y).all()):
                return False
        elif x is not y and x != y:
            return False
    return True
