"""Compare the forms of one attention layer with the products of a live diffusers model.

The inputs are those of the layer's own projections, found by the parameters they multiply with. In joint attention the
tokens of two streams are rows of one product, so a form is compared with a block of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attngeo.weights.layout.layer import Layer
from tools.proof.agreement import DIFFERENT, TOLERANCE, exchanged, live_products, projected, relative_error
from tools.proof.product_recorder import Product


@dataclass(frozen=True)
class SiteMatch:
    """The product of a live model that a layer reproduces best."""

    error: float = float("inf")  # largest relative error over heads; inf: the layer was not run
    cross: bool = False  # the tokens of the queries are not among those of the keys
    control: float = float("inf")  # error with two heads exchanged (with one head: queries and keys)
    products: frozenset[int] = frozenset()  # indices of all products that the layer reproduces

    @property
    def noticed(self) -> bool:
        """Whether exchanging two heads makes the products disagree."""
        return self.control > DIFFERENT


def match_site(model: nn.Module, weights: Layer, products: Iterable[Product]) -> SiteMatch:
    """Return how well the forms of a layer reproduce a product of the attention that its tensors belong to."""
    parameters = dict(model.named_parameters())
    query, key = (id(parameters[name]) for name in (weights.storage.query, weights.storage.key))
    best = SiteMatch()
    reproduced = set()
    for index, product in enumerate(products):
        x_q, x_k = _latest_input(product, query), _latest_input(product, key)
        if x_q is None or x_k is None:
            continue
        error = block_error(weights, product, x_q, x_k)
        if error <= TOLERANCE:
            reproduced.add(index)
        if error < best.error:
            cross = not _among(x_q, x_k, product.query.shape[0] // len(weights.query))
            best = SiteMatch(error, cross, block_error(exchanged(weights), product, x_q, x_k))
    return replace(best, products=frozenset(reproduced))


def _latest_input(product: Product, weight: int) -> Tensor | None:
    """Return the tokens [T, d] that were last multiplied with this parameter before the product."""
    return next((p.tokens for p in reversed(product.before) if p.weight == weight), None)


def _among(x_q: Tensor, x_k: Tensor, batch: int) -> bool:
    """Return whether the tokens of the queries are the first or the last of the keys, in every item of the batch."""
    if x_q.shape[1] != x_k.shape[1]:
        return False
    query, key = (tokens.reshape(batch, -1, tokens.shape[1]) for tokens in (x_q, x_k))
    count = query.shape[1]
    return key.shape[1] >= count and (torch.equal(query, key[:, :count]) or torch.equal(query, key[:, -count:]))


def block_error(weights: Layer, product: Product, x_q: Tensor, x_k: Tensor) -> float:
    """Return the relative error of x M_h xᵀ, for the block of the product that fits best: at its start or its end.

    x_q: [T, d_q], tokens of the queries, all items of the batch together
    x_k: [S, d_k], tokens of the keys
    """
    (heads, width, _), key_width = weights.query.shape, weights.key.shape[1]
    if product.query.shape[0] % heads or x_q.shape[1] != width or x_k.shape[1] != key_width:
        return float("inf")
    batch = product.query.shape[0] // heads
    live = live_products(product, batch)
    if live is None or len(x_q) % batch or len(x_k) % batch:
        return float("inf")
    logits = live.reshape(batch, heads, *live.shape[1:])  # [batch, H, N, M]
    q, k = projected(weights, x_q, x_k, batch)
    ours = q @ k.transpose(-1, -2)  # [batch, H, n, m]
    rows, columns = ours.shape[2:]
    spare = (logits.shape[2] - rows, logits.shape[3] - columns)
    if min(spare) < 0:
        return float("inf")
    return min(
        relative_error(logits[:, :, top : top + rows, left : left + columns], ours)
        for top in {0, spare[0]}
        for left in {0, spare[1]}
    )
