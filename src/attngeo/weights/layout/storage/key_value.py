"""Queries in a tensor of their own, keys and values fused: query [H·r, d], one tensor with rows [keys | values]."""

from __future__ import annotations

from collections.abc import Mapping

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, Storage, ValueRows, split_rows
from attngeo.weights.layout.storage.separate import heads_of_two, split_queries
from attngeo.weights.sources.checkpoint import ReadRequest


class KeyValue(Storage):
    """Two tensors: query [H·r, d], and one with rows [keys (G·r) | values (G·r)]."""

    value_rows = ValueRows.LAST_ROWS

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        query_rows, both_rows = (self.matrix_shape(name, shapes)[0] for name in (self.query, self.key))
        return heads_of_two(self, query_rows, both_rows // 2, declared)

    def single_head(self, shapes: Shapes) -> Heads:
        raise LayoutError(f"{self.key}: holds keys and values; give the head count: num_heads (--num-heads)")

    def requests(self, heads: Heads) -> list[ReadRequest]:
        # The values come after the keys and are not read.
        return [ReadRequest(self.query), ReadRequest(self.key, ((0, heads.keys * heads.size),))]

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        query, key = self.matrix(tensors[self.query]), self.matrix(tensors[self.key])  # [H·r, d], [2·G·r, d]
        return split_queries(query, heads), split_rows(key[: heads.keys * heads.size], heads.keys, heads.size)
