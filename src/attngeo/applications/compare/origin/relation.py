"""`Relation`: whether two models share an origin, with a p-value and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attngeo.applications.compare.origin.permuted_basis import (
    Layers,
    permuted_statistics,
    statistic,
    wrongly_paired,
)
from attngeo.applications.compare.p_values import p_text, p_value
from attngeo.arrays import Floats

DRAWS = 999
LEVEL = 0.01  # p-value at and below which the verdict is a common origin


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

    @property
    def related(self) -> bool | None:
        """Return whether the verdict is a common origin; None where there is no verdict."""
        return None if self.p_value is None else self.p_value <= LEVEL

    @property
    def null_name(self) -> str:
        """What the draws of the null are; a search for the basis would undo a permutation of it."""
        return "shuffled tokens" if self.aligned else "permuted bases"


def relation_by_permutation(layers: Layers, cosine: float, *, draws: int, seed: int, flips: bool) -> Relation:
    """Return the relation of two models by the null of permuted bases.

    layers: the reduced forms of both models
    cosine: the mean matched |cosine| of all layers and heads, for the verdict
    flips:  whether the null also changes signs
    """
    return judged(layers, cosine, permuted_statistics(layers, draws, seed, flips), aligned=False)


def judged(layers: Layers, cosine: float | None, null: Floats, *, aligned: bool) -> Relation:
    """Return the relation that the statistic of `layers` has by the draws `null` of the statistic.

    cosine: the mean matched |cosine| of all layers and heads; None: that of `layers`
    """
    observed = statistic(layers)
    cosine = observed if cosine is None else cosine
    p = p_value(observed, null)
    mean, std = float(np.mean(null)), float(np.std(null, ddof=1))
    relation = Relation("", p, cosine, mean, std, observed, wrongly_paired(layers), len(null), aligned)
    figures = f"mean matched |cosine| {observed:.3g}, {relation.null_name} {mean:.2g} ± {std:.1g}"
    if p <= LEVEL:
        verdict = f"the weights share an origin, {p_text(p, len(null))}: {figures}"
    else:
        verdict = f"no sign of a common origin, p = {p:.2g}: {figures}"
    return replace(relation, verdict=verdict)
