"""`expected_terms`: the update of each head's form, averaged over many backward passes.

The theory of the update speaks of its expectation over masks and over text. One backward pass under masked training
says little about it: only the masked rows of the last layer have any β, so that β_ij and β_ji hardly ever both exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from attngeo.arrays import AnyFloats, Floats, Ints, to_numpy
from attngeo.dynamics.gradients.expected_scores import (
    ExpectedScores,
    ExpectedTerms,
    pairing,
    split_symmetry,
    update_scores,
)
from attngeo.dynamics.gradients.growth import Growth, growth_sums, pair_kinds
from attngeo.dynamics.gradients.head_terms import HeadTerms
from attngeo.dynamics.gradients.single_pass import single_pass
from attngeo.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from attngeo.dynamics.gradients.result import GradientTerms

_HALVES = 2
_Key = tuple[str, int, int]  # stack, layer, head


def expected_terms(
    model: PreTrainedModel,
    batches: Sequence[Mapping[str, Tensor]],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
    same_rows: bool = False,
    memory: int = 2**30,
    progress: Callable[[int, int], None] | None = None,
) -> ExpectedTerms:
    """Return the negative gradient of the loss for the form of each head, averaged over `batches`, and its scores.

    model, layers, loss  as in `gradient_terms`
    batches     at least 2, of one shape; even and odd ones are the two halves that are compared
    same_rows   all batches hold the same text under different masks, so that β can be averaged pair by pair
    memory      bytes that the sums may take; heads that do not fit are averaged in further rounds over the batches
    progress    called with (passes done, passes in all)

    The model itself and the terms of one pass need memory besides.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM
    >>> model = AutoModelForCausalLM.from_pretrained(attngeo.bundled.bundled("decoder"))
    >>> rows = torch.arange(20, 68).reshape(4, 1, 12)  # [batches, rows, tokens]
    >>> terms = attngeo.expected_terms(model, [{"input_ids": ids, "labels": ids} for ids in rows])
    >>> terms.scores[0].pairing is None, len(terms)
    (True, 16)
    """
    if len(batches) < _HALVES:
        raise InputError(f"batches: {len(batches)}, expected at least {_HALVES}")
    first = single_pass(model, batches[0], layers=layers, loss=loss)
    rounds = _rounds(first, same_rows, memory)
    sums: dict[_Key, _HeadSums] = {}
    losses: list[float] = []
    total = len(rounds) * len(batches)
    for number, heads in enumerate(rounds):
        numbers = sorted({layer for _, layer, _ in heads})
        for index, batch in enumerate(batches):
            terms = first if number == index == 0 else single_pass(model, batch, layers=numbers, loss=loss)
            if number == 0:
                losses.append(terms.loss)
            kinds = _kinds(batch)
            for head in terms:
                if (key := _key(head)) in heads:
                    if key not in sums:
                        sums[key] = _HeadSums.zeros(head, same_rows)
                    sums[key].add(head, index % _HALVES, kinds)
            if progress is not None:
                progress(number * len(batches) + index + 1, total)
        for key in heads:  # only the scores stay, so that the next round has the memory
            sums[key].finish()
    scores = tuple(replace(sums[_key(head)].scores, label=head.label) for head in first)
    return ExpectedTerms(len(batches), float(np.mean(losses)), scores, first.name)


@dataclass
class _HeadSums:
    """Sums over the passes of one head, by half."""

    head: HeadTerms  # of the first pass: labels, shapes and weights
    order: Ints  # [N, N], the context of each prediction in the order of the shuffled-β control
    counts: list[int]  # passes of each half
    update: Floats  # [2, d, d]
    shuffled: Floats  # [2, d, d]
    beta: Floats | None  # [2, S, N, N]
    growth: Floats | None = field(default_factory=lambda: np.zeros((2, 3)))  # by sign and kind of pair
    result: ExpectedScores | None = None

    @classmethod
    def zeros(cls, head: HeadTerms, same_rows: bool) -> _HeadSums:
        width = head.x.shape[-1]
        form = (_HALVES, width, width)
        beta = np.zeros((_HALVES, *head.beta.shape)) if same_rows else None
        return cls(head, _shuffled_context(head), [0, 0], np.zeros(form), np.zeros(form), beta)

    def add(self, head: HeadTerms, half: int, kinds: AnyFloats | None) -> None:
        if head.x.shape != self.head.x.shape:
            raise InputError(f"batches: tokens {list(head.x.shape[:2])}, expected {list(self.head.x.shape[:2])} as in "
                             "the first batch")  # fmt: skip
        self.counts[half] += 1
        self.update[half] += _update(head.x, head.beta, head.scale)
        self.shuffled[half] += _update(head.x, np.take_along_axis(head.beta, self.order[None], 2), head.scale)
        if self.beta is not None:
            self.beta[half] += head.beta
        if self.growth is not None:
            growth = None if kinds is None else growth_sums(head, kinds)
            self.growth = None if growth is None else self.growth + growth

    def finish(self) -> None:
        """Score the averages and release the sums."""
        self.result = self._scored()
        self.update = self.shuffled = np.empty(0)
        self.beta = None

    @property
    def scores(self) -> ExpectedScores:
        assert self.result is not None
        return self.result

    def _scored(self) -> ExpectedScores:
        head, counts = self.head, np.array(self.counts, float)
        growth: list[Growth | None] = [None, None]
        if self.growth is not None and (energy := head.form.norm() ** 2):
            growth = [Growth(*map(float, part / (counts.sum() * energy))) for part in self.growth]
        pairings: dict[str, Any] = dict.fromkeys(("pairing", "pairing_split", "pairing_shuffled"))
        if self.beta is not None:
            halves = self.beta / counts[:, None, None, None]  # [2, S, N, N]
            shuffled = np.take_along_axis(halves, self.order[None, None], 3)
            pairings = {
                "pairing": pairing(halves.mean(0), halves.mean(0)),
                "pairing_split": pairing(halves[0], halves[1]),
                "pairing_shuffled": pairing(shuffled[0], shuffled[1]),
            }
        return ExpectedScores(
            label=head.label,
            stack=head.stack,
            layer=head.layer,
            head=head.head,
            **update_scores(self.update / counts[:, None, None]),
            symmetry_shuffled=split_symmetry(self.shuffled / counts[:, None, None]),
            **pairings,
            growth_symmetric=growth[0],
            growth_skew=growth[1],
        )


def _update(x: AnyFloats, beta: AnyFloats, scale: float) -> Floats:
    """Return c·XᵀβX summed over the sequences, `[d, d]`; x [S, N, d], beta [S, N, N]."""
    width = x.shape[-1]
    product = scale * (x.reshape(-1, width).T @ (beta @ x).reshape(-1, width))
    update: Floats = product.astype(np.float64)
    return update


def _shuffled_context(head: HeadTerms) -> Ints:
    """Return for each prediction i a random order of its context, `[N, N]`; under a causal mask that is j ≤ i."""
    length = head.beta.shape[1]
    is_causal = not np.triu(head.beta, 1).any()
    draw = np.random.default_rng(0)
    order = np.tile(np.arange(length), (length, 1))  # [N, N]
    for i in range(length):
        context = i + 1 if is_causal else length
        order[i, :context] = draw.permutation(context)
    return order


def _kinds(batch: Mapping[str, Tensor]) -> AnyFloats | None:
    ids = batch.get("input_ids")
    return pair_kinds(to_numpy(ids)) if isinstance(ids, Tensor) and ids.dim() == 2 else None


def _key(head: HeadTerms) -> _Key:
    return head.stack, head.layer, head.head


def _rounds(terms: GradientTerms, same_rows: bool, memory: int) -> list[set[_Key]]:
    """Return the heads whose sums are kept at the same time, round by round."""
    rounds: list[set[_Key]] = [set()]
    used = 0
    for head in terms:
        sequences, length, width = head.x.shape
        needed = 8 * _HALVES * (2 * width**2 + (sequences * length**2 if same_rows else 0))
        if rounds[-1] and used + needed > memory:
            rounds.append(set())
            used = 0
        rounds[-1].add(_key(head))
        used += needed
    return rounds
