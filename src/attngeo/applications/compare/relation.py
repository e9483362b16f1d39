"""Whether two models share an origin: the matched cosine of their heads, compared with permuted bases.

The statistic is the mean over layers, paired by index, of the mean |cosine| of the best assignment of heads. Models
trained from independent initial values have no common residual basis: architecture and optimiser treat the hidden
dimensions alike, so permuting those of one model changes nothing that the two could share, and the p-value is exact.
Models with RMSNorm also allow a change of sign in any dimension. LayerNorm does not, because it subtracts the mean.

Some hidden dimensions, layers and heads are enough for the test. They are drawn once from a seed and are the same for
both models, for the statistic and for every draw of the null. There, forms are dense and normalised, one column per
head, so that all cosines of two layers are one product.

A model whose hidden dimensions were permuted is aligned first: the dimensions of A are assigned to those of B with the
largest total cosine of token embedding columns (|cosine| where dimensions may have changed their sign). Models trained
independently on the same text share what their embeddings say about frequent and similar tokens; that lies in the
leading principal components. The columns are matched without the leading half of the components, by what initialisation
and chance left in them. With them, most unrelated pairs would be called related. General rotations of the basis are not
found.

Fixed sinusoidal positions are the same in every model of one width. They tell the hidden dimensions apart before
training begins, so models trained from different initial values share a basis, and a permuted basis is no null for
them. Which model types have them is a fact about the type, found on small live models (`python -m
tools.prove_positions`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats, Ints
from attngeo.errors import InputError
from attngeo.io.threads import each, spans
from attngeo.weights.layout.facts import family
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest

DRAWS = 999
LEVEL = 0.01  # p-value at and below which the verdict is a common origin
DIMENSIONS, LAYERS, HEADS = 128, 6, 16  # at most this many of each are used

# Some heads of one layer: the forms of A, unit columns [d'², n], and the queries and keys of B, [n, r, d].
Chosen = tuple[AnyFloats, AnyFloats, AnyFloats]
Layers = Sequence[tuple[AnyFloats, AnyFloats]]  # (forms of A, forms of B) per layer, unit columns [d'², heads]

# ---- the statistic


@dataclass(frozen=True, eq=False)
class ReducedShape:
    """Which hidden dimensions, layers and heads are used.

    >>> ReducedShape.draw(width=4096, layers=32, seed=0).dimensions.shape
    (128,)
    """

    width: int  # of the layers that are used
    dimensions: Ints  # [d'], sorted
    layers: frozenset[int]  # positions in the list of self-attention layers of this width
    seed: int

    @classmethod
    def draw(cls, width: int, layers: int, seed: int) -> ReducedShape:
        rng = np.random.default_rng([seed, 0])
        dimensions = np.sort(rng.choice(width, min(width, DIMENSIONS), replace=False))
        chosen = rng.choice(layers, min(layers, LAYERS), replace=False)
        return cls(width, dimensions, frozenset(chosen.tolist()), seed)

    def heads(self, count: int) -> Ints:
        """Return the heads that are used of a layer with `count` heads."""
        rng = np.random.default_rng([self.seed, 1])
        return np.sort(rng.choice(count, min(count, HEADS), replace=False))


def unit_forms(query: AnyFloats, key: AnyFloats) -> AnyFloats:
    """Return the forms W_q W_kᵀ of n heads as columns of length 1, `[d², n]`; a form that is zero stays zero.

    query, key: [n, r, d]

    >>> unit_forms(np.full((1, 1, 2), 1e-30, np.float32), np.full((1, 1, 2), 3e-30, np.float32)).ravel().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    largest = [np.abs(side).max((1, 2), keepdims=True) for side in (query, key)]  # [n, 1, 1]
    # Divided by its largest entry, no factor has a product or square outside of the range of float32.
    query, key = (w / np.where(size > 0, size, 1) for w, size in zip((query, key), largest, strict=True))
    flat = (query.mT @ key).reshape(len(query), -1).T  # [d², n]
    norms = np.sqrt(np.square(flat).sum(0, dtype=np.float64)).astype(flat.dtype)  # [n]
    return np.ascontiguousarray(flat / np.where(norms > 0, norms, 1))


def best_assignment(values: AnyFloats) -> tuple[Ints, Ints]:
    """Return the rows and the columns of the assignment with the largest total value.

    values: [n_a, n_b]; min(n_a, n_b) rows and columns are paired

    >>> rows, columns = best_assignment(np.array([[0.1, 0.9], [0.8, 0.7]]))
    >>> columns.tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(values, maximize=True)
    return rows, columns


def statistic(layers: Layers) -> float:
    """Return the mean over layers of the mean |cosine| of matched heads."""
    cosines = [np.abs(a.T @ b).astype(np.float64) for a, b in layers]  # [n_a, n_b] each
    return float(np.mean([sizes[best_assignment(sizes)].mean() for sizes in cosines]))


def permuted_statistics(layers: Layers, draws: int, seed: int, flips: bool) -> Floats:
    """Return the statistic for random permutations of the hidden dimensions of B, `[draws]`.

    flips: also change the sign of random dimensions

    >>> forms = np.random.default_rng(0).normal(size=(64, 3))  # 3 heads, 8 hidden dimensions
    >>> forms /= np.linalg.norm(forms, axis=0)
    >>> bool(statistic([(forms, forms)]) > permuted_statistics([(forms, forms)], 99, 0, flips=False).max())
    True
    """
    width = round(len(layers[0][0]) ** 0.5)

    def permuted(rng: np.random.Generator) -> float:
        order = rng.permutation(width)
        index = (order[:, None] * width + order).ravel()  # [d'²], entry (i, j) of P M Pᵀ
        signs = np.sign(rng.random(width) - 0.5).astype(layers[0][0].dtype) if flips else None
        flip = None if signs is None else np.outer(signs, signs).reshape(-1, 1)  # [d'², 1]
        return statistic([(a if flip is None else a * flip, b.take(index, axis=0)) for a, b in layers])

    return drawn(permuted, draws, [seed, 2], sum(a.size * b.shape[1] for a, b in layers))


def drawn(draw: Callable[[np.random.Generator], float], draws: int, seed: Sequence[int], cost: int) -> Floats:
    """Return the value of each draw, `[draws]`, each from a generator of its own.

    cost: multiply-adds of one draw
    """
    generators = np.random.default_rng(seed).spawn(draws)
    some = [generators[part] for part in spans(draws, draws * cost)]
    return np.concatenate(each(lambda part: np.array([draw(rng) for rng in part]), some, draws * cost))


# ---- the verdict


def p_value(observed: float, null: Floats) -> float:
    """Return (1 + number of draws at or above the observed statistic) / (1 + number of draws).

    >>> p_value(0.9, np.zeros(999)), p_value(np.nan, np.zeros(999))
    (0.001, 1.0)
    """
    below = null < observed - 1e-12  # False for NaN, which is evidence of nothing
    return (1 + int((~below).sum())) / (1 + len(null))


def p_text(p: float, draws: int) -> str:
    """Return a p-value as text that says whether it is the smallest that so many draws can give.

    >>> p_text(0.001, 999), p_text(0.002, 999)
    ('p ≤ 0.001', 'p = 0.002')
    """
    return f"p {'≤' if p * (draws + 1) < 1.5 else '='} {p:.2g}"


@dataclass(frozen=True)
class Relation:
    """The answer to "are they related?". An origin is one model trained from the other, or a common initialisation.

    `statistic`, `null_mean`, `null_std` and `control` are measured on the reduced shape, `cosine` on all layers, heads
    and hidden dimensions (after an alignment on the reduced shape too). Numbers are None where the question has no
    answer; the verdict says why.

    >>> Relation.none("the models differ in depth").verdict
    'no verdict: the models differ in depth'
    """

    verdict: str
    p_value: float | None = None
    cosine: float | None = None  # mean |cosine| of matched heads
    null_mean: float | None = None  # of the statistic, for permuted bases or shuffled tokens
    null_std: float | None = None
    statistic: float | None = None  # mean matched |cosine| on the reduced shape
    control: float | None = None  # the statistic with every layer paired with the next one; outside the p-value
    draws: int = 0
    aligned: bool = False  # the basis of the second model was permuted to fit, by the token embeddings

    @classmethod
    def none(cls, why: str) -> Relation:
        """Return a relation without a verdict."""
        return cls(f"no verdict: {why}")

    @classmethod
    def judged(cls, layers: Layers, null: Floats, *, cosine: float | None = None, aligned: bool = False) -> Relation:
        """Return the relation that the statistic of `layers` has by the draws `null` of the statistic.

        cosine: the mean matched |cosine| of all layers and heads; None: that of `layers`
        """
        observed = statistic(layers)
        p, mean, std = p_value(observed, null), float(np.mean(null)), float(np.std(null, ddof=1))
        # As a control, each layer of A is paired with the next layer of B.
        control = statistic([(a, b) for (a, _), (_, b) in zip(layers, [*layers[1:], layers[0]], strict=True)])
        relation = cls(
            verdict="",
            p_value=p,
            cosine=observed if cosine is None else cosine,
            null_mean=mean,
            null_std=std,
            statistic=observed,
            control=control if len(layers) > 1 else None,
            draws=len(null),
            aligned=aligned,
        )
        verdict = "the weights share an origin, " if p <= LEVEL else "no sign of a common origin, "
        verdict += p_text(p, len(null)) if p <= LEVEL else f"p = {p:.2g}"
        figures = f"mean matched |cosine| {observed:.3g}, {relation.null_name} {mean:.2g} ± {std:.1g}"
        return replace(relation, verdict=f"{verdict}: {figures}")

    @property
    def related(self) -> bool | None:
        """Return whether the verdict is a common origin; None where there is no verdict."""
        return None if self.p_value is None else self.p_value <= LEVEL

    @property
    def null_name(self) -> str:
        """What the draws of the null are; a search for the basis would undo a permutation of it."""
        return "shuffled tokens" if self.aligned else "permuted bases"


# ---- after an alignment
#
# Permuting the basis is no null for models whose dimensions were matched, because the search undoes it. Instead the
# rows (tokens) of one embedding are shuffled within deciles of the token id, and the search is repeated.

SHUFFLES = 99
TOKENS, BLOCKS = 4096, 40  # at most this many token rows, read in this many blocks of consecutive ids
SIZES_DIFFER = 0.01  # vocabularies may differ by this share of their size: padding, a few added tokens

_NAMES = re.compile(
    r"(^|\.)(word_embeddings?|embed_tokens|tok_embeddings|token_embeddings?|token_embd|embed_in|wte|shared|embeddings)"
    r"\.weight$"
)


@dataclass(frozen=True, eq=False)
class TokenEmbeddings:
    """Rows of the token embeddings of two models for the same tokens, as unit columns."""

    a: AnyFloats  # [T, d'], the reduced dimensions of A, without the leading principal components
    b: AnyFloats  # [T, d], all dimensions of B, likewise
    decile: Ints  # [T], decile of the token id

    @classmethod
    def read(cls, a: Checkpoint, b: Checkpoint, shape: ReducedShape) -> TokenEmbeddings:
        """Read some rows of the embeddings of both checkpoints; InputError where they share no vocabulary."""
        names = [embedding_name(checkpoint, shape.width) for checkpoint in (a, b)]
        sizes = [checkpoint.tensors[name].shape[0] for checkpoint, name in zip((a, b), names, strict=True)]
        vocabulary = min(sizes)
        if max(sizes) - vocabulary > SIZES_DIFFER * max(sizes):
            counts = f"{a.ref} has {sizes[0]:,} token embeddings, {b.ref} has {sizes[1]:,}"
            raise InputError(f"align: {counts}; expected models with a shared vocabulary")
        edges = np.linspace(0, vocabulary, BLOCKS + 1).astype(int)
        rows = tuple((lo, min(hi, lo + -(-TOKENS // BLOCKS))) for lo, hi in pairwise(edges.tolist()))
        rows = tuple(span for span in rows if span[0] < span[1])
        of_a, of_b = (c.read(ReadRequest(name, rows)) for c, name in zip((a, b), names, strict=True))  # [T, d]
        ids = np.concatenate([np.arange(lo, hi) for lo, hi in rows])
        of_a, of_b = without_leading(of_a)[:, shape.dimensions], without_leading(of_b)
        return cls(_unit(of_a), _unit(of_b), 10 * ids // vocabulary)

    def find_basis(self, flips: bool) -> tuple[Ints, Floats]:
        """Return the dimension of B that fits each dimension of A, `[d']`, and the signs, all 1 unless `flips`."""
        cosines = self.a.T @ self.b  # [d', d]
        rows, columns = best_assignment(np.abs(cosines) if flips else cosines)
        signs = np.where(cosines[rows, columns] < 0, -1.0, 1.0) if flips else np.ones(len(rows))
        return columns, signs

    def shuffled(self, rng: np.random.Generator) -> TokenEmbeddings:
        """Return the embeddings with the tokens of A shuffled within deciles of the token id."""
        order = np.lexsort((rng.random(len(self.decile)), self.decile))  # deciles in order, tokens at random
        return TokenEmbeddings(self.a[order], self.b, self.decile)


def relation_by_alignment(layers: Sequence[Chosen], embeddings: TokenEmbeddings, *, seed: int, flips: bool) -> Relation:
    """Return the relation of two models after the hidden dimensions of B were matched to those of A, by SHUFFLES draws.

    layers: with all hidden dimensions of B
    flips: dimensions may also have changed their sign (RMSNorm)
    """

    def aligned(tokens: TokenEmbeddings) -> list[tuple[AnyFloats, AnyFloats]]:
        order, signs = tokens.find_basis(flips)
        return [
            (forms, unit_forms(*(side[:, :, order] * signs.astype(side.dtype) for side in (query, key))))
            for forms, query, key in layers
        ]

    cost = embeddings.a.shape[1] * embeddings.b.size
    null = drawn(lambda rng: statistic(aligned(embeddings.shuffled(rng))), SHUFFLES, [seed, 3], cost)
    return Relation.judged(aligned(embeddings), null, aligned=True)


def embedding_name(checkpoint: Checkpoint, width: int) -> str:
    """Return the name of the token embedding [tokens, width] of a checkpoint."""
    matrices = [name for name, info in checkpoint.tensors.items() if len(info.shape) == 2 and info.shape[1] == width]
    found = next((name for name in matrices if _NAMES.search(name)), None)
    if found is None:
        raise InputError(f"{checkpoint.ref}: no token embedding of width {width} found, align needs one")
    return found


def without_leading(embedding: AnyFloats) -> AnyFloats:
    """Return an embedding [T, d] with its columns centred and the leading half of its principal components removed.

    Permuting the columns, or changing their signs, before or after makes no difference.

    >>> rng = np.random.default_rng(0)
    >>> frequency, chance = rng.normal(size=(50, 1)), rng.normal(size=(50, 4))
    >>> left = without_leading(9 * frequency + chance)
    >>> bool(np.abs(left.T @ (frequency - frequency.mean())).max() < 5)
    True
    """
    centred = embedding - embedding.mean(0)
    wide = centred.shape[0] < centred.shape[1]
    gram = centred @ centred.T if wide else centred.T @ centred  # [min(T, d), min(T, d)]
    leading = np.linalg.eigh(gram)[1][:, len(gram) - len(gram) // 2 :]  # [min(T, d), half]
    removed = leading @ (leading.T @ centred) if wide else (centred @ leading) @ leading.T
    rest: AnyFloats = centred - removed
    return rest


def _unit(columns: AnyFloats) -> AnyFloats:
    """Return columns [T, n] of length 1; a zero column stays zero."""
    norms = np.linalg.norm(columns, axis=0)
    unit: AnyFloats = np.divide(columns, norms, out=np.zeros_like(columns), where=norms > 0)
    return unit


# ---- fixed positions

# Config switches of types that can have either kind.
SWITCHES = {
    "sinusoidal_pos_embds": True,
    "sinusoidal_embeddings": True,
    "use_learned_position_embeddings": False,
    "position_embedding_type": "sine",
    "is_native": True,  # AIMv2
}


def has_fixed_positions(config: Mapping[str, Any] | None) -> bool:
    """Return whether a model with this config, or a part of it, adds fixed sinusoids to its hidden states.

    >>> has_fixed_positions({"model_type": "whisper"}), has_fixed_positions({"model_type": "bert"})
    (True, False)
    """
    return any(
        family(str(part.get("model_type"))).fixed_positions
        or any(part.get(key) == value for key, value in SWITCHES.items())
        for part in _parts(config or {})
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _parts(value)
