"""`LayerSums`: what many backward passes add up to for some heads of one layer, by halves of the passes.

The sums are torch tensors on the device of the model, in float64: two d×d matrices per head and half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attngeo.arrays import AnyFloats, Bools, Ints, to_numpy
from attngeo.errors import InputError
from attngeo.training.gradients.expected_scores import ExpectedScores, pairing, split_symmetry, update_scores
from attngeo.training.gradients.growth import Growth, growth_sums, moves_by_terms
from attngeo.training.gradients.result import LayerTerms


class LayerSums:
    """Sums over passes of −∂L/∂M, of its shuffled-β control, of β and of the growth of M, for some heads of a layer."""

    def __init__(self, heads: Sequence[int], same_rows: bool, device: torch.device) -> None:
        self.heads = list(heads)
        self.same_rows = same_rows  # whether β is averaged pair by pair
        self.device = device
        self.first: LayerTerms | None = None
        self.counts = np.zeros(2)  # passes of each half
        self.growth: Tensor | None = None  # [h, 2, 3], by sign and kind of pair

    def add(self, layer: LayerTerms, half: int, kinds: AnyFloats | None, text: Bools | None) -> None:
        """Add one pass.

        kinds: [S, N, N], the kind of each pair of positions; None where there are no token ids
        text:  [S, N], whether a position is text and not padding; None where all are
        """
        x = torch.from_numpy(layer.x).to(self.device)  # [S, N, d]
        beta = torch.from_numpy(layer.beta[:, self.heads]).to(self.device)  # [S, h, N, N]
        if self.first is None:
            self._begin(layer, x, beta, kinds, text)
        assert self.first is not None
        if layer.x.shape != self.first.x.shape:
            found, expected = list(layer.x.shape[:2]), list(self.first.x.shape[:2])
            raise InputError(f"batches: tokens {found}, expected {expected} as in the first batch")
        self.counts[half] += 1
        self.update[half] += layer.scale * _updates(x, beta)
        self.shuffled[half] += layer.scale * _updates(x, _shuffled(beta, self._order_in(text)[:, None]))
        if self.same_rows:
            self.beta[half] += beta
        if self.growth is not None and kinds is not None:
            of_pairs = torch.from_numpy(kinds).to(self.device)  # [S, N, N]
            vectors = self._doubles(layer.query[:, self.heads], layer.key[:, self.heads])  # [S, h, N, r]
            self.growth += growth_sums(x.double(), beta.double(), self.weights, vectors, layer.scale, of_pairs)

    def _begin(self, layer: LayerTerms, x: Tensor, beta: Tensor, kinds: AnyFloats | None, text: Bools | None) -> None:
        self.first, self.first_text = layer, text
        form = (2, len(self.heads), x.shape[-1], x.shape[-1])
        self.update, self.shuffled = (torch.zeros(form, dtype=torch.float64, device=self.device) for _ in range(2))
        self.order = _shuffled_context(layer.beta)
        if kinds is not None and all(moves_by_terms(layer.head(head)) for head in self.heads):
            assert layer.weights is not None
            weights = layer.weights
            self.weights = self._doubles(weights.query[self.heads], weights.key[self.heads])  # [h, d, r]
            self.growth = torch.zeros((len(self.heads), 2, 3), dtype=torch.float64, device=self.device)
        if self.same_rows:
            self.beta = torch.zeros((2, *beta.shape), dtype=torch.float64, device=self.device)

    def _order_in(self, text: Bools | None) -> Tensor:
        """Return the order of the context of each prediction, [S or 1, N, N], in which padding keeps its place."""
        order = self.order[None] if text is None else _without_padding(self.order, text)
        return torch.from_numpy(order).to(self.device)

    def _doubles(self, query: AnyFloats, key: AnyFloats) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(query).to(self.device).double(), torch.from_numpy(key).to(self.device).double()

    def scores(self) -> Iterator[ExpectedScores]:
        """Yield the scores of the averages, head by head."""
        assert self.first is not None
        counts = torch.from_numpy(self.counts).to(self.device)[:, None, None]  # [2, 1, 1]
        for number, head in enumerate(self.heads):
            one = self.first.head(head)
            growth: list[Growth | None] = [None, None]
            if self.growth is not None and (energy := one.form.norm() ** 2):
                parts = self.growth[number] / (self.counts.sum() * energy)  # [2, 3]
                growth = [Growth(*part) for part in parts.tolist()]
            pairings: dict[str, Any] = dict.fromkeys(("pairing", "pairing_split", "pairing_shuffled"))
            if self.same_rows:
                halves = self.beta[:, :, number] / counts[..., None]  # [2, S, N, N]
                mean = to_numpy(self.beta[:, :, number].sum(0)) / self.counts.sum()  # [S, N, N]
                shuffled = to_numpy(_shuffled(halves, self._order_in(self.first_text)))
                pairings = {
                    "pairing": pairing(mean, mean),
                    "pairing_split": pairing(*to_numpy(halves)),
                    "pairing_shuffled": pairing(*shuffled),
                }
            yield ExpectedScores(
                label=one.label,
                stack=one.stack,
                layer=one.layer,
                head=one.head,
                **update_scores(to_numpy(self.update[:, number] / counts), self.counts),
                symmetry_shuffled=split_symmetry(to_numpy(self.shuffled[:, number] / counts)),
                **pairings,
                growth_symmetric=growth[0],
                growth_skew=growth[1],
            )


def _updates(x: Tensor, beta: Tensor) -> Tensor:
    """Return XᵀβX of each head, summed over the sequences, `[h, d, d]`; x [S, N, d], beta [S, h, N, N]."""
    weighted = (beta @ x[:, None]).movedim(1, 0).flatten(1, 2)  # [h, S·N, d]
    return x.flatten(0, 1).T @ weighted


def _shuffled(beta: Tensor, order: Tensor) -> Tensor:
    """Return β `[..., N, N]` with the context of each prediction in another order, which expands to its shape."""
    return beta.gather(-1, order.expand(beta.shape))


def _shuffled_context(beta: AnyFloats) -> Ints:
    """Return for each prediction i a random order of its context, `[N, N]`; under a causal mask that is j ≤ i.

    beta: [S, H, N, N]
    """
    length = beta.shape[-1]
    is_causal = not np.triu(beta, 1).any()
    draw = np.random.default_rng(0)
    order = np.tile(np.arange(length), (length, 1))  # [N, N]
    for i in range(length):
        context = i + 1 if is_causal else length
        order[i, :context] = draw.permutation(context)
    return order


def _without_padding(order: Ints, text: Bools) -> Ints:
    """Return orders `[S, N, N]` of the context of each prediction that move text only, in the order of `order`.

    order: [N, N]
    text:  [S, N], whether a position is text and not padding
    """
    # Both lists have the text first, in the given order and by position; padding follows.
    given = np.take_along_axis(order[None], np.argsort(~text[:, order], axis=-1, kind="stable"), -1)  # [S, N, N]
    places = np.argsort(~text, axis=-1, kind="stable")[:, None]  # [S, 1, N]
    moved = np.empty_like(given)
    np.put_along_axis(moved, np.broadcast_to(places, given.shape), given, -1)
    return moved
