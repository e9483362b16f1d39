"""Queries and keys in tensors of their own: query [H·r, d], key [G·r, d]."""

from __future__ import annotations

from collections.abc import Mapping

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import head_sizes, key_heads, other_key_heads
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, Storage, ValueRows, split_rows
from attngeo.weights.sources.checkpoint import ReadRequest


class Separate(Storage):
    """Two tensors: query [H·r, d], key [G·r, d]; with output gates the query rows are [H, (query, gate), r]."""

    value_rows = ValueRows.OWN_TENSOR

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        query_rows, key_rows = (self.matrix_shape(name, shapes)[0] for name in (self.query, self.key))
        return heads_of_two(self, query_rows, key_rows, declared)

    def single_head(self, shapes: Shapes) -> Heads:
        query_rows, key_rows = (self.matrix_shape(name, shapes)[0] for name in (self.query, self.key))
        if query_rows != key_rows:
            raise LayoutError(
                f"{self.query} has {query_rows} rows and {self.key} has {key_rows}; without a head count "
                "(num_heads, --num-heads) they must have equally many"
            )
        return Heads(1, 1, query_rows)

    def requests(self, heads: Heads) -> list[ReadRequest]:
        return [ReadRequest(self.query), ReadRequest(self.key)]

    def views(self, tensors: Mapping[str, Array], heads: Heads) -> tuple[Array, Array]:
        query, key = self.matrix(tensors[self.query]), self.matrix(tensors[self.key])  # [H·r, d], [G·r, d]
        return split_queries(query, heads), split_rows(key, heads.keys, heads.size)

    def expected_rows(self, heads: Heads) -> dict[str, int]:
        return {self.query: heads.queries * heads.size, self.key: heads.keys * heads.size}

    def widths_differ(self, shapes: Shapes) -> bool:
        return shapes[self.query][1:2] != shapes[self.key][1:2]


def split_queries(query: Array, heads: Heads) -> Array:
    """Return query rows [H·r, d], or [H·2·r, d] with output gates, as [G, m, r, d]."""
    parts = (2,) if heads.gated else ()
    rows = split_rows(query, heads.keys, heads.group, *parts, heads.size)  # [G, m, r, d] or [G, m, (query, gate), r, d]
    queries: Array = rows[:, :, 0] if heads.gated else rows
    return queries


def heads_of_two(storage: Storage, query_rows: int, key_rows: int, declared: DeclaredHeads) -> Heads:
    """Return the heads of a query tensor of `query_rows` rows and a key tensor with `key_rows` rows of keys.

    The config gives H, the query rows give r, the key rows give G. Where the config also declares r or G, they must
    agree.
    """
    queries, source, scope = declared.queries, declared.source, declared.scope
    if query_rows % queries:
        raise LayoutError(f"{storage.query}: {query_rows} rows do not divide into {queries} heads ({source})")
    size, gated = query_rows // queries, False
    sizes = head_sizes(scope) if scope is not None else set()
    if declared.gated_type and size // 2 in sizes:
        size, gated = size // 2, True
    if sizes and size not in sizes and not declared.cross:
        raise LayoutError(
            f"{storage.query}: {query_rows} rows make {queries} heads ({source}) of size {size}, "
            f"but the config declares size {' or '.join(map(str, sorted(sizes)))}"
        )
    if key_rows % size or key_rows < size or queries % (key_rows // size):
        raise LayoutError(
            f"{storage.key}: {key_rows} rows do not divide into key heads of size {size} whose number divides "
            f"the {queries} query heads ({source})"
        )
    heads = Heads(queries, key_rows // size, size, gated)
    declared_keys = key_heads(scope) if scope is not None and not declared.cross else None
    if scope is None or declared_keys is None or not isinstance(declared_keys[1], int):
        return heads
    if heads.keys != declared_keys[1] and heads.keys not in other_key_heads(scope) and sizes:
        raise LayoutError(
            f"{storage.key}: holds {heads.keys} key heads of size {size}, but {declared_keys[0]} is {declared_keys[1]}"
        )
    return heads
