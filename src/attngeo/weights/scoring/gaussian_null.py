"""The Gaussian null: the scores of M = W_q W_kᵀ when the entries of W_q and W_k are independent Gaussians.

Symmetry has mean 1/d exactly, because rotating W_q by a random rotation of R^d leaves its distribution unchanged. Its
standard deviation is drawn at a reduced shape (d at most 64, r in proportion but at least 8) and scaled by the law
std ∝ 1/d, which holds for every r. Directionality is drawn at full size, but without the d×r factors: given W_k, the
ρ_i² are independent and each is Σ_a λ_a z_a², with λ the spectrum of W_kᵀW_k and z standard normal. They are drawn from
the shifted gamma distribution with the same first three cumulants (Σλ, 2Σλ², 8Σλ³, at their expectation over W_k);
columns likewise, independently. Dominance comes from the same draws. Rows and columns are not quite independent, and
the spectrum varies: for small forms such draws are too narrow, and more than 5% of random forms would have p ≤ 0.05.
Small forms are therefore drawn with their whole factors.

Under rotary position embedding, with n rotating pairs and u other dimensions per head (r = 2n + u), the symmetry has

    mean  u/(r·d)        standard deviation  √(2(u/r)² + (1 − u/r)²/n)/d

for heads and layers alike, and ρ² is again Σ λ z², with the spectrum of the averaged Gram matrix P(W_kᵀW_k): per pair
that of a complex Wishart matrix [G, G] with d degrees of freedom, twice, and that of a real one [G·u, G·u]. An
attention factor f (YaRN, LongRoPE) multiplies what rotates by f⁴, so that u/r becomes u/(u + 2n f⁴), and λ of a pair
f⁴ λ.

`tests/weights/scoring/test_gaussian_null.py` compares all of them with draws of the whole factors at full size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.io.archive import load_npy
from attngeo.io.files import cache_dir, cache_file
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import score_forms
from attngeo.weights.scoring.formulas import directionality, dominance

DRAWS = 999
REDUCED_WIDTH = 64  # at which symmetry is drawn
FACTOR_ENTRIES = 2**20  # in all draws of one side's reduced factors: the smaller the shape, the more draws
WHOLE_ENTRIES = 2**12  # in both factors of a form, up to which directionality is drawn with whole factors
VERSION = 2  # part of the names of cached files: to be raised when the draws change


@dataclass(frozen=True, eq=False)
class GaussianNull:
    """The distribution of the scores of random forms of one shape."""

    symmetry_mean: float  # NaN where d_q ≠ d_k
    symmetry_std: float
    directionality: Floats  # [draws]
    centre: float  # mean of directionality: 0 where d_q = d_k, by symmetry
    dominance_mean: float = math.nan  # 0 where d_q = d_k
    dominance_std: float = math.nan

    @cached_property
    def directionality_std(self) -> float:
        """Standard deviation of the drawn directionalities around `centre`."""
        return float(np.sqrt(np.square(self.directionality - self.centre).mean()))

    @cached_property
    def _distances(self) -> Floats:
        """The distances of the drawn directionalities from `centre`, in ascending order."""
        return np.sort(np.abs(self.directionality - self.centre))

    def level(self, score: str) -> tuple[float, float]:
        """Return mean and standard deviation of a score: "symmetry", "directionality" or "dominance".

        A null without spread has the standard deviation 0: for d ≤ 5 no norm can exceed its threshold.
        """
        return {
            "symmetry": (self.symmetry_mean, self.symmetry_std),
            "directionality": (self.centre, self.directionality_std),
            "dominance": (self.dominance_mean, self.dominance_std),
        }[score]

    def z(self, score: str, value: float) -> float:
        """Return the distance of a score from the mean of the null, in standard deviations; NaN without spread."""
        mean, std = self.level(score)
        return (value - mean) / std if std > 0 else math.nan

    def directionality_p(self, score: float) -> float:
        """Return the two-sided p-value (1 + number of draws at least as far from the centre)/(1 + number of draws)."""
        if math.isnan(score):
            return math.nan
        nearer = int(np.searchsorted(self._distances, abs(score - self.centre)))
        return (1 + len(self._distances) - nearer) / (1 + len(self._distances))


class _Shape(NamedTuple):
    """The shape of a form: without rotation that of its factors, else that of its G key heads."""

    d_query: int
    d_key: int
    real: int  # dimensions of all heads that do not rotate
    pairs: int = 0  # pairs of a head that rotate
    groups: int = 1  # G
    energy: float = 1.0  # of a pair, relative to other dimensions

    @property
    def few_entries(self) -> bool:
        """Whether random forms are drawn with their whole factors."""
        width = self.real + 2 * self.pairs * self.groups
        return (self.d_query + self.d_key) * width <= WHOLE_ENTRIES


@lru_cache(maxsize=256)
def gaussian_null(d_query: int, d_key: int, r: int) -> GaussianNull:
    """Return the null of forms with factors [d_query, r] and [d_key, r].

    It is the same at every call: seeded by the shape, and cached on disk after the first draw.
    """
    return _null(_Shape(d_query, d_key, r), [d_query, d_key, r], f"{d_query}-{d_key}-{r}", 1 / d_query)


@lru_cache(maxsize=256)
def rotary_null(d_query: int, d_key: int, groups: int, pairs: int, fixed: int, factor: float = 1.0) -> GaussianNull:
    """Return the null of the averages over all offsets of forms under rotary position embedding.

    groups: number of key heads in the form: 1 for a head, G for a layer
    pairs:  number n of rotating pairs per head
    fixed:  number u of dimensions per head that do not rotate
    factor: the attention factor, relative to what multiplies the other dimensions
    """
    energy = factor**4 if fixed else 1.0  # of pairs alone, the size does not matter
    shape = _Shape(d_query, d_key, fixed * groups, pairs, groups, energy)
    share = fixed / (fixed + 2 * pairs * energy)
    std = math.sqrt(2 * share**2 + ((1 - share) ** 2 / pairs if pairs else 0.0)) / d_query
    name = f"rope-{d_query}-{d_key}-{groups}-{pairs}-{fixed}" + (f"-{energy:.6g}" if energy != 1 else "")
    return _null(shape, [d_query, d_key, groups, pairs, fixed], name, share / d_query, std)


def _null(shape: _Shape, seed: list[int], name: str, mean: float, std: float | None = None) -> GaussianNull:
    """Return a null from the mean and the standard deviation of the symmetry, drawn where None, and cached draws."""
    square = shape.d_query == shape.d_key

    def draw(rng: np.random.Generator) -> Floats:
        drawn = _draw_symmetry_std(shape.d_query, shape.real, rng) if square and std is None else math.nan
        return np.concatenate([[drawn], _draw_norm_scores(shape, rng)])

    drawn, dominance_mean, dominance_std, *_ = values = _cached(name + "-whole" * shape.few_entries, seed, draw)
    draws = values[3:]
    return GaussianNull(
        symmetry_mean=mean if square else math.nan,
        symmetry_std=(float(drawn) if std is None else std) if square else math.nan,
        directionality=draws,
        centre=0.0 if square else float(draws.mean()),
        dominance_mean=float(dominance_mean),
        dominance_std=float(dominance_std),
    )


def _draw_symmetry_std(d: int, r: int, rng: np.random.Generator) -> float:
    """Return the standard deviation of the symmetry around its mean, from Gaussian factors of a reduced width."""
    width = min(d, REDUCED_WIDTH)
    rank = max(min(r, 8), round(r * width / d))  # lower ranks have long tails and need many more draws
    draws = max(400, FACTOR_ENTRIES // (rank * width))
    query, key = rng.standard_normal((2, draws, rank, width), dtype=np.float32)
    scores = score_forms(query.mT, key.mT).symmetry  # [draws]
    return float(np.sqrt(np.square(scores - 1 / width).mean())) * width / d


def _draw_norm_scores(shape: _Shape, rng: np.random.Generator) -> Floats:
    """Return mean and standard deviation of the dominance of random forms, and their directionality `[2 + draws]`."""
    direction, ratio = (_draw_whole_forms if shape.few_entries else _draw_norms)(shape, rng)
    mean = 0.0 if shape.d_query == shape.d_key else float(ratio.mean())
    std = math.sqrt(float(np.square(ratio - mean).mean()))
    return np.concatenate([[mean, std], direction])


def _draw_norms(shape: _Shape, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the directionality and the dominance of random forms, each `[draws]`, from draws of their norms alone."""
    columns = _draw_row_norms(shape.d_key, _gram_traces(shape.d_query, shape), rng)  # [draws, d_k]
    traces = _gram_traces(shape.d_key, shape)
    direction, ratio = [], []
    for some in np.array_split(columns, 16):  # wide forms take much memory
        rows = _draw_row_norms(shape.d_query, traces, rng, len(some))  # [some, d_q]
        direction.append(directionality(rows, some))
        ratio.append(dominance(rows, some))
    return np.concatenate(direction), np.concatenate(ratio)


def _draw_whole_forms(shape: _Shape, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the directionality and the dominance of random forms, each `[draws]`, from their whole factors."""
    query, key = (rng.standard_normal((DRAWS, d, shape.real)) for d in (shape.d_query, shape.d_key))
    if not shape.pairs:
        scores = score_forms(query, key)
        return scores.directionality, scores.dominance
    fixed = shape.real // shape.groups
    rotary = RotaryPairs.halves(np.arange(1.0, shape.pairs + 1), factor=shape.energy**0.25)
    whole = []  # [draws, d, G·r], the pairs of each key head before its other dimensions
    for still in (query, key):
        size = *still.shape[:2], shape.groups
        turning = rng.standard_normal((2, shape.pairs, *size)).transpose(2, 3, 4, 0, 1)  # [draws, d, G, 2, pairs]
        heads = np.concatenate([turning.reshape(*size, 2 * shape.pairs), still.reshape(*size, fixed)], 3)
        whole.append(heads.reshape(*size[:2], -1))
    scores = score_forms(whole[0], whole[1], rotary, groups=shape.groups)
    return scores.directionality_rope, scores.dominance_rope


def _gram_traces(d: int, shape: _Shape) -> Floats:
    """Return E tr G, E tr G², E tr G³ of the averaged Gram matrix G of one side's Gaussian factors, of width d.

    The part of G that does not rotate is a real Wishart matrix. Each pair has a complex one [groups, groups], whose
    eigenvalues all occur twice.
    """
    n, p, g = float(d), float(shape.real), float(shape.groups)
    of_real = n * p * np.array([1, n + p + 1, n * n + 3 * n * p + p * p + 3 * n + 3 * p + 4])
    of_pair = n * g * np.array([1, n + g, n * n + 3 * n * g + g * g + 1])
    traces: Floats = of_real + 2 * shape.pairs * of_pair * shape.energy ** np.arange(1, 4)
    return traces


def _draw_row_norms(count: int, traces: Floats, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Return `count` row norms of each random form, `[draws, count]`, given the traces for the other side's factor."""
    trace1, trace2, trace3 = traces
    shape, scale = trace2**3 / trace3**2 / 2, 2 * trace3 / trace2
    shift = trace1 - trace2**2 / trace3  # ≥ 0 by the inequality of Cauchy and Schwarz
    squares: Floats = shift + scale * rng.standard_gamma(shape, size=(draws, count))
    np.sqrt(squares, out=squares)
    return squares


# ---- draws on disk


def _cached(name: str, seed: list[int], draw: Callable[[np.random.Generator], Floats]) -> Floats:
    """Return `[3 + DRAWS]` values from the cache, drawn with this seed where they are not in it."""
    path = cache_dir() / "nulls" / f"{VERSION}-{name}.npy"
    values = _read_cached(path)
    if values is None:
        values = draw(np.random.default_rng([VERSION, *seed]))
        _write_cached(path, values)
    return values


def _read_cached(path: Path) -> Floats | None:
    """Return the cached draws, None where the file is missing or damaged."""
    try:
        values = load_npy(path)
    except InputError:
        return None
    return values if values.shape == (DRAWS + 3,) else None


def _write_cached(path: Path, values: Floats) -> None:
    """Cache the draws; where that is not possible they are drawn again next time."""
    try:
        with cache_file(path) as file:
            np.save(file, values)
    except OSError:
        pass
