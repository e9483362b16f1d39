"""Undo a permutation of the hidden dimensions: match the columns of two token embeddings.

    find    the assignment of A's hidden dimensions to B's with the largest total cosine of embedding columns (|cosine|
            where dimensions may have changed their sign)
    null    the rows (tokens) of one embedding shuffled within deciles of the token id, and the search repeated

Permuting the basis is no null here, because the search undoes it. Models trained independently on the same text share
what their embeddings say about frequent and similar tokens; that lies in the leading principal components. The columns
are matched without the leading half of the components, by what initialisation and chance left in them. With them, most
unrelated pairs would be called related. General rotations of the basis are not found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attngeo.applications.compare.relation import (
    Chosen,
    ReducedShape,
    Relation,
    best_assignment,
    drawn,
    statistic,
    unit_forms,
)
from attngeo.arrays import AnyFloats, Floats, Ints
from attngeo.errors import InputError
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest

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
