"""Queries, keys and values fused with the input of a feed-forward layer: rows [queries | keys | values | others]."""

from __future__ import annotations

from attngeo.errors import LayoutError
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, ValueRows
from attngeo.weights.layout.storage.fused import Blocks


class BlocksFirst(Blocks):
    """Rows [queries (H·r) | keys (H·r) | values (H·r) | others]; the config gives r."""

    value_rows = ValueRows.INTERLEAVED

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        rows, _ = self.matrix_shape(self.query, shapes)
        size = declared.scope.get("attention_head_dim") if declared.scope is not None else None
        if not isinstance(size, int) or size < 1 or rows < 3 * declared.queries * size:
            raise LayoutError(
                f"{self.query}: {rows} rows do not hold the queries, keys and values of {declared.queries} heads "
                f"({declared.source}) of size {size!r} (attention_head_dim)"
            )
        return Heads(declared.queries, declared.queries, size)

    def single_head(self, shapes: Shapes) -> Heads:
        raise LayoutError(f"{self.query}: also holds a feed-forward layer; the head count has to come from a config")
