"""How the heads of one layer lie in its tensors: one class per kind of storage.

`Separate`     query [H·r, d] and key [G·r, d]
`KeyValue`     query [H·r, d], and one tensor with rows [keys | values]
`Blocks`       one tensor with rows [queries | keys | values]
`BlocksFirst`  the same, followed by the input of a feed-forward layer
`PerHead`      one tensor with rows [G, (H/G queries, key, value), r]
`CodeGen`      one tensor with rows [4, (queries, values, keys), H/4, r]
`Latent`       down- and up-projections with a norm between them (multi-head latent attention)

A class answers three questions: how many heads there are (`count_heads`), which bytes have to be read (`requests`), and
which rows belong to which head (`views`); an instance describes one layer. Arrays may be NumPy arrays or torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from attngeo.arrays import Array, empty
from attngeo.errors import LayoutError
from attngeo.weights.layout.facts import Scope, head_sizes, key_heads, other_key_heads
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
    full_group: int | None = None  # H/G in the full model, for a pruned layer

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
class Storage:
    """One way to store the queries and keys of a layer. This base class knows no way."""

    query: str = ""  # names of the tensors that hold the queries and the keys; fused storage: the same name twice
    key: str = ""
    others: Mapping[str, str] = field(default_factory=dict)  # role → name of a further tensor (latent attention)
    transposed: bool = False  # tensors are stored [in, out] (Conv1D, XLNet) instead of [out, in]

    value_rows: ClassVar[ValueRows] = ValueRows.OWN_TENSOR
    has_views: ClassVar[bool] = True  # False: queries and keys are products of tensors, so there is nothing to view

    @property
    def inputs(self) -> tuple[str, str]:
        """Return the names of the tensors that multiply the token vectors, on the query and on the key side."""
        return self.query, self.key

    # How many heads.

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        """Return the heads that `declared` and the shapes agree on; LayoutError where they contradict each other."""
        raise NotImplementedError

    def single_head(self, shapes: Shapes) -> Heads:
        """Return one head that holds the whole layer, for a layer whose head count is unknown."""
        raise LayoutError(
            f"{self.query}: holds more than queries and keys, so the head count is needed: num_heads (--num-heads)"
        )

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        """Return the number of rows that each tensor has with these heads."""
        raise LayoutError(f"{self.query}: heads of a layer with this kind of storage cannot be removed")

    # Which bytes to read, and which rows belong to which head.

    def requests(self, heads: Heads) -> list[ReadRequest]:
        """Return the reads that `factors` needs, in the order in which they are best made."""
        return [ReadRequest(name) for name in dict.fromkeys((*self.others.values(), self.query, self.key))]

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        """Return queries [*g, m, r, d] and keys [*g, r, d] as views of `tensors`.

        The axes *g (one axis or two) count the key heads; m query heads share one key head. `tensors` may hold just
        the rows that `requests` asks for.
        """
        raise NotImplementedError

    def factors(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        """Return queries [H, d_q, r] and keys [G, d_k, r]: views of `tensors` where their strides allow it."""
        query, key = self.views(tensors, heads)
        return _heads_first(query, heads.queries), _heads_first(key, heads.keys)

    # Shapes.

    def widths(self, shapes: Shapes) -> tuple[int, int]:
        """Return the widths d_q and d_k of the vectors that the queries and the keys read."""
        query, key = (self.matrix_shape(name, shapes)[1] for name in self.inputs)
        return query, key

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


class Separate(Storage):
    """Two tensors: query [H·r, d], key [G·r, d]; with output gates the query rows are [H, (query, gate), r]."""

    def rows(self, shapes: Shapes) -> tuple[int, int]:
        """Return the number of rows with queries and the number of rows with keys."""
        query, key = (self.matrix_shape(name, shapes)[0] for name in (self.query, self.key))
        return query, key

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        """Return the heads: the config gives H, the query rows give r, the key rows give G.

        Where the config also declares r or G, they must agree.
        """
        queries, source, scope = declared.queries, declared.source, declared.scope
        query_rows, key_rows = self.rows(shapes)
        if query_rows % queries:
            raise LayoutError(f"{self.query}: {query_rows} rows do not divide into {queries} heads ({source})")
        size, gated = query_rows // queries, False
        sizes = head_sizes(scope) if scope is not None else set()
        if scope is not None and scope.facts.gated and size // 2 in sizes:
            size, gated = size // 2, True
        if sizes and size not in sizes and not declared.cross:
            raise LayoutError(
                f"{self.query}: {query_rows} rows make {queries} heads ({source}) of size {size}, "
                f"but the config declares size {' or '.join(map(str, sorted(sizes)))}"
            )
        if key_rows % size or key_rows < size or queries % (key_rows // size):
            raise LayoutError(
                f"{self.key}: {key_rows} rows do not divide into key heads of size {size} whose number divides "
                f"the {queries} query heads ({source})"
            )
        keys = key_rows // size
        stated = key_heads(scope) if scope is not None and sizes and not declared.cross else None
        if scope is not None and stated is not None and isinstance(stated[1], int):
            others = other_key_heads(scope)
            if keys not in {stated[1], *others, *(scope.facts.window_keys * count for count in others)}:
                raise LayoutError(f"{self.key}: holds {keys} key heads of size {size}, but {stated[0]} is {stated[1]}")
        return Heads(queries, keys, size, gated)

    def single_head(self, shapes: Shapes) -> Heads:
        query_rows, key_rows = self.rows(shapes)
        if query_rows != key_rows:
            raise LayoutError(
                f"{self.query} has {query_rows} rows and {self.key} has {key_rows}; without a head count "
                "(num_heads, --num-heads) they must have equally many"
            )
        return Heads(1, 1, query_rows)

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        return {self.query: heads.queries * heads.size, self.key: heads.keys * heads.size}

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        query, key = self.matrix(tensors[self.query]), self.matrix(tensors[self.key])  # [H·r, d], [G·r or more, d]
        key = key[: heads.keys * heads.size].reshape(heads.keys, heads.size, -1)
        if not heads.gated:
            return query.reshape(heads.keys, heads.group, heads.size, -1), key
        return query.reshape(heads.keys, heads.group, 2, heads.size, -1)[:, :, 0], key  # [G, m, (query, gate), r, d]


class KeyValue(Separate):
    """Two tensors: query [H·r, d], and one with rows [keys (G·r) | values (G·r)]."""

    value_rows = ValueRows.LAST_ROWS

    def rows(self, shapes: Shapes) -> tuple[int, int]:
        query, both = super().rows(shapes)
        return query, both // 2

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        return Storage.expected_rows(self, heads)

    def requests(self, heads: Heads) -> list[ReadRequest]:
        # The values come after the keys and are not read.
        return [ReadRequest(self.query), ReadRequest(self.key, ((0, heads.keys * heads.size),))]


class Fused(Storage):
    """One tensor with H query heads, G key heads and G value heads, all of size r; subclasses give their order."""

    value_rows = ValueRows.INTERLEAVED

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        """Return the heads that share the (H + 2G)·r rows; G is the config's, or H where it declares none."""
        rows, _ = self.matrix_shape(self.query, shapes)
        queries, keys = declared.queries, _declared_keys(declared)
        for count in (keys, queries):
            if count > 0 and queries % count == 0 and rows % (queries + 2 * count) == 0:
                return Heads(queries, count, rows // (queries + 2 * count))
        raise LayoutError(
            f"{self.query}: {rows} rows do not hold {queries} query, {keys} key and {keys} value heads of one size"
        )

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        return {self.query: (heads.queries + 2 * heads.keys) * heads.size}

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        return self.split(self.matrix(tensors[self.query]), heads)

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        """Return queries [*g, m, r, d] and keys [*g, r, d] as views of the rows [out, d] of the tensor."""
        raise NotImplementedError


class Blocks(Fused):
    """Rows [queries (H·r) | keys (G·r) | values (G·r)]."""

    value_rows = ValueRows.LAST_ROWS

    def single_head(self, shapes: Shapes) -> Heads:
        rows, _ = self.matrix_shape(self.query, shapes)
        if rows % 3:
            raise LayoutError(
                f"{self.query}: {rows} rows are not three equal blocks; give the head count: num_heads (--num-heads)"
            )
        return Heads(1, 1, rows // 3)

    def requests(self, heads: Heads) -> list[ReadRequest]:
        if self.transposed:  # [in, out]: every stored row holds a part of the queries and keys
            return [ReadRequest(self.query)]
        # The values come after the keys and are not read.
        return [ReadRequest(self.query, ((0, (heads.queries + heads.keys) * heads.size),))]

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        first_key, last_key = heads.queries * heads.size, (heads.queries + heads.keys) * heads.size
        query = rows[:first_key].reshape(heads.keys, heads.group, heads.size, -1)  # [G, m, r, d]
        return query, rows[first_key:last_key].reshape(heads.keys, heads.size, -1)


class BlocksFirst(Blocks):
    """Rows [queries (H·r) | keys (H·r) | values (H·r) | input of a feed-forward layer]; the config gives r."""

    value_rows = ValueRows.INTERLEAVED
    single_head = Storage.single_head

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        rows, _ = self.matrix_shape(self.query, shapes)
        size = declared.scope.get("attention_head_dim") if declared.scope is not None else None
        if not isinstance(size, int) or size < 1 or rows < 3 * declared.queries * size:
            raise LayoutError(
                f"{self.query}: {rows} rows do not hold the queries, keys and values of {declared.queries} heads "
                f"({declared.source}) of size {size!r} (attention_head_dim)"
            )
        return Heads(declared.queries, declared.queries, size)


class PerHead(Fused):
    """Rows [G, (m queries, key, value), r]: each key head lies between its queries and its values."""

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        cells = rows.reshape(heads.keys, heads.group + 2, heads.size, -1)  # [G, m + 2, r, d]
        return cells[:, :-2], cells[:, -2]


class CodeGen(Fused):
    """Rows [4, (queries, values, keys), H/4, r]: four parts of H/4 heads each, values before keys."""

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        cells = rows.reshape(4, 3, heads.queries // 4, 1, heads.size, -1)  # [4, (q, v, k), H/4, m = 1, r, d]
        return cells[:, 0], cells[:, 2, :, 0]


class Latent(Storage):
    """Up-projections [H·r, rank] applied to a normalised latent vector, which down-projections [rank, d] make.

    W_qᵀ = up_q diag(gain_q) down_q, or one plain matrix. A key head is [part without position, rotary part]; the first
    is up_k diag(gain_k) down_k, the second is stored once, below down_k, and shared by all heads. `others` names the
    tensors key_down and key_gain, and query_down and query_gain where the queries are factored too.
    """

    value_rows = ValueRows.INTERLEAVED
    has_views = False

    @property
    def inputs(self) -> tuple[str, str]:
        return self.others.get("query_down", self.query), self.others.get("key_down", self.key)

    def single_head(self, shapes: Shapes) -> Heads:
        raise LayoutError(f"{self.key}: latent attention needs a config with its head sizes")

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        if declared.scope is None:
            return self.single_head(shapes)
        count = declared.queries
        plain, rotary = (declared.scope.get(key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
        query_rows, _ = self.matrix_shape(self.query, shapes)
        up_rows, rank = self.matrix_shape(self.key, shapes)
        down_rows, _ = self.matrix_shape(self.others["key_down"], shapes)
        fits = up_rows % count == 0 and up_rows >= count * plain and down_rows == rank + rotary
        if not fits or query_rows != count * (plain + rotary):
            raise LayoutError(
                f"{self.query} {list(shapes[self.query])} and {self.key} {list(shapes[self.key])}: "
                f"not {count} latent heads of size {plain} (qk_nope_head_dim) + {rotary} (qk_rope_head_dim)"
            )
        return Heads(count, count, plain + rotary)

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        raise LayoutError(
            f"{self.query}: latent attention; its queries and keys are products of several projections, "
            "so there is no one tensor to write them into"
        )

    def factors(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        """Return queries and keys [H, d, r], the projections multiplied out."""
        query, key = self._query(tensors), self._key(tensors, heads)
        return query.reshape(heads.queries, heads.size, query.shape[1]).swapaxes(1, 2), key.swapaxes(1, 2)

    def _query(self, tensors: Mapping[str, Array]) -> Array:
        query = tensors[self.query]  # [H·r, d] or [H·r, q_rank]
        if "query_down" not in self.others:
            return query
        query *= tensors[self.others["query_gain"]]  # [q_rank]
        product: Array = query @ tensors[self.others["query_down"]]  # [H·r, q_rank] @ [q_rank, d]
        return product

    def _key(self, tensors: Mapping[str, Array], heads: Heads) -> Array:
        """Return keys [H, r, d]."""
        up = tensors[self.key]  # [H·(plain + value), rank]
        both = tensors[self.others["key_down"]]  # [rank + rotary, d]
        down, rotary = both[: up.shape[1]], both[up.shape[1] :]  # [rank, d], [rotary, d]
        plain = heads.size - len(rotary)
        rows = up.reshape(heads.keys, len(up) // heads.keys, up.shape[1])  # [H, plain + value, rank]
        rows = rows[:, :plain] * tensors[self.others["key_gain"]]  # [H, plain, rank]
        key: Array = empty((heads.keys, heads.size, down.shape[1]), like=up)  # [H, r, d]
        for out, row in zip(key, rows, strict=True):  # one head at a time: no second copy of all the keys
            out[:plain] = row @ down
        key[:, plain:] = rotary
        return key


def _heads_first(rows: Array, count: int) -> Array:
    """[..., r, d] → [count, d, r]."""
    heads: Array = rows.reshape(count, rows.shape[-2], rows.shape[-1]).swapaxes(1, 2)
    return heads


def _declared_keys(declared: DeclaredHeads) -> int:
    """Return the key head count that the config declares; the query head count where it declares none."""
    scope = declared.scope
    if scope is None:
        return declared.queries
    multi_query = scope.get("multi_query")
    if multi_query is not None and not scope.get("new_decoder_architecture", False):  # Falcon, GPT-BigCode
        return 1 if multi_query else declared.queries
    keys = key_heads(scope)
    return keys[1] if keys and isinstance(keys[1], int) else declared.queries
