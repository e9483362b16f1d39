"""`expected_terms`: the update of each head's form, averaged over many backward passes, and its scores.

The theory of the update speaks of its expectation over masks and over text. One backward pass under masked training
says little about it: only the masked rows of the last layer have any β, so that β_ij and β_ji hardly ever both exist.
Averages of noisy updates are scored in two ways: the average itself, and between two halves of the passes, where the
noise of one pass cannot agree with itself:

    symmetry of an update U = tr(U U)/⟨U, U⟩,    between halves tr(U₁ U₂)/⟨U₁, U₂⟩
    pairing of β = Σ β_ij β_ji / Σ β_ij β_ij,    between halves Σ β¹_ij β²_ji / Σ β¹_ij β²_ij,    over i ≠ j

A step of size η changes M = W_q W_kᵀ by δM = η c Σ_ij β_ij (x_i k̂_jᵀ W_kᵀ + W_q q̂_i x_jᵀ), with q̂ and k̂ the queries
and keys, biases included, so that its symmetric and skew parts M_± = (M ± Mᵀ)/2 grow by

    d‖M_±‖²/dη = 2⟨M_±, δM/η⟩ = 2c Σ_ij β_ij T_ij,    T_ij = (W_kᵀM_±ᵀx_i)·k̂_j + q̂_i·(W_qᵀM_±x_j)

This sum splits by pairs: a token with itself (i = j), two positions that hold the same token, and all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attngeo.arrays import AnyFloats, Bools, Floats, Ints, to_numpy
from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.training.gradients.single_pass import single_pass
from attngeo.training.gradients.terms import GradientTerms, HeadTerms, LayerTerms
from attngeo.weights.scoring.formulas import coefficient_of_variation, dense_norms, directionality
from attngeo.weights.scoring.score_table import null_if_nan

if TYPE_CHECKING:
    import polars as pl
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

_HALVES = 2
_TOLERANCE = 1e-2  # relative difference of the weight gradient from that of the terms that float32 sums may have
_Layer = tuple[str, int]  # stack, layer


# ---- results


@dataclass(frozen=True)
class Growth:
    """d‖M_s‖²/dη or d‖M_a‖²/dη, relative to ‖M‖², by kind of token pair."""

    position: float  # i = j
    token: float  # i ≠ j, the same token id
    rest: float

    @property
    def total(self) -> float:
        return self.position + self.token + self.rest


@dataclass(frozen=True)
class ExpectedScores:
    """The scores of one head's average update; None where a score does not exist."""

    label: str
    stack: str
    layer: int
    head: int
    norm: float  # of the average update
    agreement: float | None  # cosine between the average updates of both halves: 1 where nothing is noise
    symmetry: float | None
    symmetry_split: float | None  # between halves
    symmetry_shuffled: float | None  # between halves, with the coefficients of each prediction shuffled in its context
    directionality: float
    row_spread: float | None  # coefficient of variation of the row norms
    column_spread: float | None
    pairing: float | None  # of the average β; None where the passes have different rows
    pairing_split: float | None
    pairing_shuffled: float | None
    growth_symmetric: Growth | None  # of ‖M_s‖², relative to ‖M‖²; None where M does not move by its terms alone
    growth_skew: Growth | None


@dataclass(frozen=True)
class ExpectedTerms:
    """The update of the form of each self-attention head, averaged over many backward passes.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM
    >>> model = AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"))
    >>> rows = torch.arange(20, 68).reshape(4, 1, 12)  # [batches, rows, tokens]
    >>> terms = attngeo.expected_terms(model, [{"input_ids": ids, "labels": ids} for ids in rows])
    >>> terms
    ExpectedTerms(4 passes, mean loss 6.86, 16 heads)
    """

    passes: int
    loss: float  # mean over the passes
    scores: tuple[ExpectedScores, ...]
    name: str = ""  # of the model, for titles

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, label: str) -> ExpectedScores:
        for row in self.scores:
            if row.label == label:
                return row
        raise InputError(f"head {label!r}: expected one of {self.scores[0].label} … {self.scores[-1].label}")

    def rows(self) -> list[dict[str, object]]:
        """Return one flat mapping per head; a growth becomes three values, such as `growth_skew_position`."""
        rows = []
        for scores in self.scores:
            row: dict[str, Any] = asdict(scores)
            for name in ("growth_symmetric", "growth_skew"):
                parts = row.pop(name) or dict.fromkeys(Growth.__dataclass_fields__)
                row |= {f"{name}_{part}": number for part, number in parts.items()}
            rows.append(row)
        return rows

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The scores as a tidy polars frame, one row per head."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def __repr__(self) -> str:
        return f"ExpectedTerms({self.passes} passes, mean loss {self.loss:.3g}, {len(self)} heads)"


# ---- many passes


@accepts_progress_bar
def expected_terms(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
    same_rows: bool = False,
    memory: int = 2**30,
    progress: Progress | bool | None = None,
) -> ExpectedTerms:
    """Return the negative gradient of the loss for the form of each head, averaged over `batches`, and its scores.

    model, layers, loss  as in `gradient_terms`
    batches     at least 2, of one shape; even and odd ones are the two halves that are compared
    same_rows   all batches hold the same text under different masks, so that β can be averaged pair by pair
    memory      bytes that the sums may take; heads that do not fit are averaged in further rounds over the batches
    progress    called with (passes done, passes in all); True draws a progress bar

    The model itself and the terms of one pass need memory besides.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM
    >>> model = AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"))
    >>> rows = torch.arange(20, 68).reshape(4, 1, 12)  # [batches, rows, tokens]
    >>> terms = attngeo.expected_terms(model, [{"input_ids": ids, "labels": ids} for ids in rows])
    >>> terms.scores[0].pairing is None, len(terms)
    (True, 16)
    """
    batches = list(batches)  # they are read more than once
    if len(batches) < _HALVES:
        raise InputError(f"batches: {len(batches)}, expected at least {_HALVES}")
    first = single_pass(model, batches[0], layers=layers, loss=loss)
    rounds = _rounds(first, same_rows, memory)
    scores: dict[tuple[str, int, int], ExpectedScores] = {}
    losses: list[float] = []
    for number, heads_of in enumerate(rounds):
        sums: dict[_Layer, _LayerSums] = {}
        for index, batch in enumerate(batches):
            numbers = sorted({layer for _, layer in heads_of})
            terms = first if number == index == 0 else single_pass(model, batch, layers=numbers, loss=loss)
            if number == 0:
                losses.append(terms.loss)
            for layer in terms.layers:
                key = layer.stack, layer.layer
                if key in heads_of:
                    kinds, text = _pairs_and_text(model, batch, layer)
                    if key not in sums:
                        sums[key] = _LayerSums(layer, heads_of[key], same_rows, model.device, kinds, text)
                    sums[key].add(layer, index % _HALVES, kinds, text)
            if callable(progress):
                progress(number * len(batches) + index + 1, len(rounds) * len(batches))
        scores |= {(row.stack, row.layer, row.head): row for one in sums.values() for row in one.scores()}
    ordered = (replace(scores[head.stack, head.layer, head.head], label=head.label) for head in first)
    return ExpectedTerms(len(batches), float(np.mean(losses)), tuple(ordered), first.name)


def _rounds(terms: GradientTerms, same_rows: bool, memory: int) -> list[dict[_Layer, list[int]]]:
    """Return the heads of each layer whose sums are kept at the same time, round by round."""
    rounds: list[dict[_Layer, list[int]]] = [{}]
    used = 0
    for head in terms:
        sequences, length, width = head.x.shape
        needed = 8 * _HALVES * (2 * width**2 + (sequences * length**2 if same_rows else 0))
        if rounds[-1] and used + needed > memory:
            rounds.append({})
            used = 0
        rounds[-1].setdefault((head.stack, head.layer), []).append(head.head)
        used += needed
    return rounds


def _pairs_and_text(
    model: PreTrainedModel, batch: Mapping[str, Tensor], layer: LayerTerms
) -> tuple[AnyFloats | None, Bools | None]:
    """Return the kind of each pair of positions of a layer, and which positions are text and not padding.

    kinds: [S, N, N], 0 for i = j, 1 for the same token id, 2 for the rest; None where its token ids are not known
    text:  [S, N]; None where there is no padding
    """
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if getattr(model.config, "is_encoder_decoder", False) and "decoder" in layer.stack:
        # A decoder beside an encoder has token ids and a mask of its own, or reads the labels.
        ids, mask = batch.get("decoder_input_ids"), batch.get("decoder_attention_mask")
        shifted = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if ids is None and shifted is not None and "labels" in batch:
            ids = shifted(labels=batch["labels"])
    known_ids, known_mask = _by_token(ids, layer), _by_token(mask, layer)
    kinds = None
    if known_ids is not None:
        same_token = known_ids[:, :, None] == known_ids[:, None, :]  # [S, N, N]
        kinds = np.where(np.eye(known_ids.shape[1], dtype=bool), 0, np.where(same_token, 1, 2))
    return kinds, None if known_mask is None or known_mask.all() else known_mask.astype(bool)


def _by_token(values: Tensor | None, layer: LayerTerms) -> AnyFloats | None:
    """Return values of tokens [rows, N] for the sequences of a layer, [S, N]; None where they are not of its tokens."""
    sequences, length, _ = layer.x.shape
    if values is None or values.dim() != 2 or values.shape[1] != length:
        return None
    # A layer that the model uses several times (ALBERT) has the sequences of all its calls, one call after another.
    return np.tile(to_numpy(values), (sequences // len(values), 1))


class _LayerSums:
    """Sums over passes of −∂L/∂M, of its shuffled-β control, of β and of the growth of M, for some heads of a layer.

    They are float64 tensors on the device of the model, by halves of the passes: two d×d matrices per head and half.
    """

    def __init__(
        self,
        first: LayerTerms,
        heads: list[int],
        same_rows: bool,
        device: torch.device,
        kinds: AnyFloats | None,
        text: Bools | None,
    ) -> None:
        """first, kinds, text: of the first pass, as in `add`; same_rows: whether β is averaged pair by pair"""
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        width = first.x.shape[-1]
        self.first, self.first_text, self.heads, self.device = first, text, heads, device
        self.counts = np.zeros(_HALVES)  # passes of each half
        self.update, self.shuffled = (zeros(_HALVES, len(heads), width, width) for _ in range(2))
        self.beta = zeros(_HALVES, *first.beta[:, heads].shape) if same_rows else None
        self.order = _shuffled_context(first.beta)
        moves = kinds is not None and all(_moves_by_terms(first.head(head)) for head in heads)
        self.growth = zeros(len(heads), 2, 3) if moves else None  # by sign and kind of pair

    def _tensor(self, array: AnyFloats | Ints) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def add(self, layer: LayerTerms, half: int, kinds: AnyFloats | None, text: Bools | None) -> None:
        """Add one pass; kinds and text as `_pairs_and_text` returns them."""
        if layer.x.shape != self.first.x.shape:
            found, expected = list(layer.x.shape[:2]), list(self.first.x.shape[:2])
            raise InputError(f"batches: tokens {found}, expected {expected} as in the first batch")
        x, beta = self._tensor(layer.x), self._tensor(layer.beta[:, self.heads])  # [S, N, d], [S, h, N, N]
        self.counts[half] += 1
        self.update[half] += layer.scale * _updates(x, beta)
        self.shuffled[half] += layer.scale * _updates(x, self._shuffled(beta, text))
        if self.beta is not None:
            self.beta[half] += beta
        if self.growth is not None and kinds is not None and layer.weights is not None:
            w, heads = layer.weights, self.heads
            of_heads = (w.query[heads], w.key[heads], layer.query[:, heads], layer.key[:, heads])
            doubles = [self._tensor(array).double() for array in of_heads]
            scaled = layer.scale * beta.double()
            self.growth += _growth(x.double(), scaled, doubles[:2], doubles[2:], self._tensor(kinds))

    def _shuffled(self, beta: Tensor, text: Bools | None) -> Tensor:
        """Return β [..., S, h, N, N] with the context of each prediction in another order; padding keeps its place."""
        order = self.order[None] if text is None else _without_padding(self.order, text)  # [S or 1, N, N]
        return beta.gather(-1, self._tensor(order)[:, None].expand(beta.shape))

    def scores(self) -> Iterator[ExpectedScores]:
        """Yield the scores of the averages, head by head."""
        counts = self._tensor(self.counts)[:, None, None]  # [2, 1, 1]
        for number, head in enumerate(self.heads):
            one = self.first.head(head)
            growth: list[Growth | None] = [None, None]
            if self.growth is not None and (energy := one.form.norm() ** 2):
                parts = self.growth[number] / (self.counts.sum() * energy)  # [2, 3]
                growth = [Growth(*part) for part in parts.tolist()]
            pairings: list[float | None] = [None, None, None]
            if self.beta is not None:
                beta = self.beta[:, :, [number]] / counts[..., None, None]  # [2, S, 1, N, N]
                halves, control = to_numpy(beta), to_numpy(self._shuffled(beta, self.first_text))
                mean = np.average(halves, 0, self.counts)  # [S, 1, N, N]
                pairings = [_pairing(*pair) for pair in ((mean, mean), halves, control)]
            yield ExpectedScores(
                label=one.label,
                stack=one.stack,
                layer=one.layer,
                head=one.head,
                **_update_scores(to_numpy(self.update[:, number] / counts), self.counts),
                symmetry_shuffled=_split_symmetry(to_numpy(self.shuffled[:, number] / counts)),
                pairing=pairings[0],
                pairing_split=pairings[1],
                pairing_shuffled=pairings[2],
                growth_symmetric=growth[0],
                growth_skew=growth[1],
            )


# ---- scores of averages


def _updates(x: Tensor, beta: Tensor) -> Tensor:
    """Return XᵀβX of each head, summed over the sequences, `[h, d, d]`; x [S, N, d], beta [S, h, N, N]."""
    weighted = (beta @ x[:, None]).movedim(1, 0).flatten(1, 2)  # [h, S·N, d]
    return x.flatten(0, 1).T @ weighted


def _update_scores(halves: Floats, passes: Floats) -> dict[str, Any]:
    """Return the scores of an average update from the averages of both halves, [2, d, d], of `passes` [2] passes."""
    mean = np.average(halves, 0, passes)  # [d, d]
    rows, columns = dense_norms(mean)  # [d], [d]
    norms = np.linalg.norm(halves, axis=(1, 2))  # [2]
    overlap = float(np.vdot(halves[0], halves[1]))
    return {
        "norm": float(np.linalg.norm(mean)),
        "agreement": overlap / float(norms[0] * norms[1]) if norms.all() else None,
        "symmetry": _ratio(mean, mean.T, mean),
        "symmetry_split": _split_symmetry(halves),
        "directionality": float(directionality(rows, columns)),
        "row_spread": null_if_nan(float(coefficient_of_variation(rows))),
        "column_spread": null_if_nan(float(coefficient_of_variation(columns))),
    }


def _split_symmetry(halves: Floats) -> float | None:
    """Return tr(U₁ U₂)/⟨U₁, U₂⟩ of halves `[2, d, d]`; None where the halves do not agree at all."""
    return _ratio(halves[0], halves[1].T, halves[1])


def _pairing(first: AnyFloats, second: AnyFloats) -> float | None:
    """Return Σ β¹_ij β²_ji / Σ β¹_ij β²_ij over i ≠ j; both [..., N, N]."""
    off_diagonal = first * ~np.eye(first.shape[-1], dtype=bool)  # [..., N, N]
    return _ratio(off_diagonal, second.swapaxes(-1, -2), second)


def _ratio(left: AnyFloats, over: AnyFloats, under: AnyFloats) -> float | None:
    """Return ⟨left, over⟩/⟨left, under⟩, None unless the denominator is positive."""
    denominator = float((left * under).sum())
    return float((left * over).sum()) / denominator if denominator > 0 else None


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


# ---- growth


def _growth(x: Tensor, beta: Tensor, weights: Sequence[Tensor], vectors: Sequence[Tensor], kinds: Tensor) -> Tensor:
    """Return d‖M_±‖²/dη of each head by sign and kind of pair, `[h, 2, 3]`, for weights that move by the terms alone.

    x:       [S, N, d], token vectors
    beta:    [S, h, N, N], times c
    weights: of queries and keys, [h, d, r] each
    vectors: queries and keys, [S, h, N, r] each
    kinds:   [S, N, N], see `_pairs_and_text`

    Only products of size N×N and d×r are formed.
    """
    (query, key), (of_query, of_key) = weights, vectors
    gram_query, gram_key, cross = query.mT @ query, key.mT @ key, query.mT @ key  # [h, r, r]
    on_query, on_key = x[:, None] @ query, x[:, None] @ key  # [S, h, N, r]
    sums = []
    for sign in (1, -1):
        left = (on_query @ gram_key + sign * on_key @ cross) / 2  # [S, h, N, r], W_kᵀ M_±ᵀ x_i
        right = (on_key @ gram_query + sign * on_query @ cross.mT) / 2  # [S, h, N, r], W_qᵀ M_± x_j
        grown = 2 * beta * (left @ of_key.mT + of_query @ right.mT)  # [S, h, N, N]
        sums.append(torch.stack([(grown * (kinds == kind)[:, None]).sum((0, 2, 3)) for kind in range(3)], -1))  # [h, 3]
    return torch.stack(sums, -2)


def _moves_by_terms(head: HeadTerms) -> bool:
    """Return whether M moves by its terms alone: ∂L/∂W_q = −c Xᵀβk̂ and ∂L/∂W_k = −c Xᵀβᵀq̂.

    Rotation, QK-norm and keys that several heads share add other terms to the gradient of the weights.
    """
    if (w := head.weights) is None:
        return False
    x = head.x.reshape(-1, head.x.shape[-1])  # [S·N, d]
    to_query = -head.scale * x.T @ (head.beta @ head.key).reshape(len(x), -1)  # [d, r]
    to_key = -head.scale * x.T @ (head.beta.swapaxes(1, 2) @ head.query).reshape(len(x), -1)  # [d, r]
    return all(
        np.linalg.norm(from_terms - own) <= _TOLERANCE * np.linalg.norm(own)
        for from_terms, own in ((to_query, w.query_gradient), (to_key, w.key_gradient))
    )
