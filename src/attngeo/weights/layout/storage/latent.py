"""Multi-head latent attention (DeepSeek): queries and keys are products of down- and up-projections."""

from __future__ import annotations

from collections.abc import Mapping

from attngeo.arrays import Array, empty
from attngeo.errors import LayoutError
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, Storage, ValueRows
from attngeo.weights.sources.checkpoint import ReadRequest


class Latent(Storage):
    """Up-projections [H·r, rank] applied to a normalised latent vector, which down-projections [rank, d] make.

    W_qᵀ = up_q diag(gain_q) down_q, or one plain matrix. A key head is [part without position, rotary part]; the first
    is up_k diag(gain_k) down_k, the second is stored once, below down_k, and shared by all heads. `others` names the
    tensors key_down and key_gain, and query_down and query_gain where the queries are factored too.
    """

    value_rows = ValueRows.INTERLEAVED
    has_views = False

    def count_heads(self, shapes: Shapes, declared: DeclaredHeads | None) -> Heads | None:
        if declared is None or declared.scope is None:
            raise LayoutError(f"{self.key}: latent attention needs a config with its head sizes")
        return self.settle_heads(shapes, declared)

    def settle_heads(self, shapes: Shapes, declared: DeclaredHeads) -> Heads:
        assert declared.scope is not None
        plain, rotary = (declared.scope.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
        if not isinstance(plain, int) or not isinstance(rotary, int):
            raise LayoutError(
                f"{self.key}: latent attention needs whole numbers qk_nope_head_dim and qk_rope_head_dim in the config"
            )
        heads = Heads(declared.queries, declared.queries, plain + rotary)
        self._check_shapes(shapes, heads)
        return heads

    def _check_shapes(self, shapes: Shapes, heads: Heads) -> None:
        """Raise LayoutError unless the shapes of all tensors fit together."""
        query_rows, query_rank = self.matrix_shape(self.query, shapes)
        up_rows, rank = self.matrix_shape(self.key, shapes)
        down_rows, _ = self.matrix_shape(self.others["key_down"], shapes)
        if "query_down" in self.others:
            _, width = self.matrix_shape(self.others["query_down"], shapes)
            _expect_shape(self.others["query_down"], shapes, (query_rank, width))
            _expect_shape(self.others["query_gain"], shapes, (query_rank,))
        _expect_shape(self.others["key_gain"], shapes, (rank,))
        plain = heads.size - (down_rows - rank)  # size of a key's part without position
        count = heads.queries
        fits = down_rows >= rank and plain > 0 and up_rows % count == 0 and up_rows >= count * plain
        if not fits or query_rows != count * heads.size:
            raise LayoutError(
                f"{self.query} {list(shapes[self.query])} and {self.key} {list(shapes[self.key])}: "
                f"not {count} latent heads of size {heads.size}"
            )

    def requests(self, heads: Heads) -> list[ReadRequest]:
        return [ReadRequest(name) for name in (*self.others.values(), self.query, self.key)]

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

    @property
    def inputs(self) -> tuple[str, str]:
        return self.others.get("query_down", self.query), self.others.get("key_down", self.key)


def _expect_shape(name: str, shapes: Shapes, expected: tuple[int, ...]) -> None:
    if shapes[name] != expected:
        raise LayoutError(f"{name}: shape {list(shapes[name])}, expected {list(expected)}")
