"""Whether two models share an origin: the matched cosine of their heads, compared with permuted bases.

The statistic is the mean over layers, paired by index, of the mean |cosine| of the best assignment of heads. Models
trained from independent initial values have no common residual basis: architecture and optimiser treat the hidden
dimensions alike, so permuting those of one model changes nothing that the two could share, and the p-value is exact.
Models with RMSNorm also allow a change of sign in any dimension. LayerNorm does not, because it subtracts the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats, Ints
from attngeo.io.threads import each, spans
from attngeo.weights.layout.families import family
from attngeo.weights.scoring.layer import LayerFactors


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


def unit_forms(query: AnyFloats, key: AnyFloats) -> AnyFloats:
    """Return the forms W_q W_kᵀ of n heads as columns of length 1, `[d², n]`; a form that is zero stays zero.

    query, key: [n, r, d]

    >>> unit_forms(np.full((1, 1, 2), 1e-30, np.float32), np.full((1, 1, 2), 3e-30, np.float32)).ravel().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    query, key = (_relative(side) for side in (query, key))
    return unit_columns(query.swapaxes(1, 2) @ key)  # [n, d, d]


def _relative(side: AnyFloats) -> AnyFloats:
    """Return factors [n, r, d], each divided by its largest entry: no product or square leaves the range of float32."""
    largest = np.abs(side).max((1, 2), keepdims=True)  # [n, 1, 1]
    relative: AnyFloats = side / np.where(largest > 0, largest, 1)
    return relative


def unit_columns(forms: AnyFloats) -> AnyFloats:
    """Return forms [n, d, d] as columns of length 1, `[d², n]`; a form that is zero stays zero."""
    flat = forms.reshape(len(forms), -1).T  # [d², n]
    norms = np.sqrt(np.square(flat).sum(0, dtype=np.float64)).astype(flat.dtype)  # [n]
    return np.ascontiguousarray(np.divide(flat, norms, out=np.zeros_like(flat), where=norms > 0))


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


def matched_cosine(cosines: AnyFloats) -> float:
    """Return the mean |cosine| of the best assignment of `cosines` [n_a, n_b]."""
    sizes = np.abs(cosines)
    return float(sizes[best_assignment(sizes)].mean())


def cosine_matrix(a: AnyFloats, b: AnyFloats) -> Floats:
    """Return the cosines [n_a, n_b] of all pairs of unit columns, [d², n_a] and [d², n_b]."""
    cosines: Floats = (a.T @ b).astype(np.float64)
    return cosines


Layers = Sequence[tuple[AnyFloats, AnyFloats]]  # (forms of A, forms of B) per layer, unit columns [d², heads]


def statistic(layers: Layers) -> float:
    """Return the mean over layers of the matched |cosine|."""
    return float(np.mean([matched_cosine(cosine_matrix(a, b)) for a, b in layers]))


def wrongly_paired(layers: Layers) -> float | None:
    """Return the statistic with each layer of A paired with the next layer of B, as a control; None for one layer."""
    if len(layers) < 2:
        return None
    return statistic([(a, layers[(at + 1) % len(layers)][1]) for at, (a, _) in enumerate(layers)])


def permuted_statistics(layers: Layers, draws: int, seed: int, flips: bool) -> Floats:
    """Return the statistic for random permutations of the hidden dimensions of B, `[draws]`.

    flips: also change the sign of random dimensions

    >>> forms = np.random.default_rng(0).normal(size=(64, 3))  # 3 heads, 8 hidden dimensions
    >>> forms /= np.linalg.norm(forms, axis=0)
    >>> bool(statistic([(forms, forms)]) > permuted_statistics([(forms, forms)], 99, 0, flips=False).max())
    True
    """
    width = round(len(layers[0][0]) ** 0.5)
    generators = np.random.default_rng([seed, 2]).spawn(draws)
    found = np.empty(draws)

    def work(some: slice) -> None:
        for draw in range(some.start, some.stop):
            rng = generators[draw]
            order = rng.permutation(width)
            index = (order[:, None] * width + order).ravel()  # [d²], entry (i, j) of P M Pᵀ
            total = 0.0
            signs = np.sign(rng.random(width) - 0.5).astype(layers[0][0].dtype) if flips else None
            flip = None if signs is None else np.outer(signs, signs).reshape(-1, 1)  # [d², 1]
            for a, b in layers:
                permuted = b.take(index, axis=0)  # [d², heads]
                total += matched_cosine(cosine_matrix(a if flip is None else a * flip, permuted))
            found[draw] = total / len(layers)

    cost = draws * sum(a.size * b.shape[1] for a, b in layers)
    each(work, spans(draws, cost), cost)
    return found


DIMENSIONS, LAYERS, HEADS = 128, 6, 16  # at most this many of each


@dataclass(frozen=True, eq=False)
class ReducedShape:
    """Which hidden dimensions, layers and heads are used.

    >>> ReducedShape.draw(width=4096, layers=32, seed=0).dimensions.shape
    (128,)
    """

    dimensions: Ints  # [d'], sorted
    layers: frozenset[int]  # positions in the list of paired layers
    seed: int

    @classmethod
    def draw(cls, width: int, layers: int, seed: int) -> ReducedShape:
        rng = np.random.default_rng([seed, 0])
        dimensions = np.sort(rng.choice(width, min(width, DIMENSIONS), replace=False))
        chosen = rng.choice(layers, min(layers, LAYERS), replace=False)
        return cls(dimensions, frozenset(chosen.tolist()), seed)

    def heads(self, count: int) -> Ints:
        """Return the heads that are used of a layer with `count` heads."""
        rng = np.random.default_rng([self.seed, 1])
        return np.sort(rng.choice(count, min(count, HEADS), replace=False))


def reduced_forms(factors: LayerFactors, dimensions: Ints) -> AnyFloats:
    """Return the forms of all heads, restricted to some hidden dimensions, as unit columns `[d'², H]`."""
    query, key = (side.mT[:, :, dimensions] for side in (factors.query, factors.key))  # [H, r, d'], [G, r, d']
    keys = np.repeat(key, factors.group_size, axis=0)  # [H, r, d']
    return unit_forms(query, keys)


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
