"""Queries, keys and values fused into one tensor: as blocks, head by head, or as CodeGen does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import key_heads
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, Storage, ValueRows, split_rows
from attngeo.weights.sources.checkpoint import ReadRequest


class Fused(Storage):
    """One tensor with H query heads, G key heads and G value heads, all of size r; subclasses give their order."""

    value_rows = ValueRows.INTERLEAVED

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
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

    def requests(self, heads: Heads) -> list[ReadRequest]:
        return [ReadRequest(self.query)]

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        return self.split(self.matrix(tensors[self.query]), heads)

    @abstractmethod
    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        """Return queries [*g, m, r, d] and keys [*g, r, d] as views of the rows [out, d] of the tensor."""


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
        query = split_rows(rows[:first_key], heads.keys, heads.group, heads.size)  # [G, m, r, d]
        return query, split_rows(rows[first_key:last_key], heads.keys, heads.size)


class PerHead(Fused):
    """Rows [G, (m queries, key, value), r]: each key head lies between its queries and its values."""

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        cells = split_rows(rows, heads.keys, heads.group + 2, heads.size)  # [G, m + 2, r, d]
        return cells[:, :-2], cells[:, -2]


class CodeGen(Fused):
    """Rows [4, (queries, values, keys), H/4, r]: four parts of H/4 heads each, values before keys."""

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        heads = super().settle_heads(shapes, declared)
        if heads.queries % 4 or heads.group != 1:
            raise LayoutError(
                f"{self.query}: {heads.queries} query and {heads.keys} key heads, expected equally many, "
                "a multiple of 4 (CodeGen)"
            )
        return heads

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        cells = split_rows(rows, 4, 3, heads.queries // 4, 1, heads.size)  # [4, (q, v, k), H/4, m = 1, r, d]
        return cells[:, 0], cells[:, 2, :, 0]


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
