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
Dimensions = tuple[int, int, int, float]  # of a form: real, pairs, groups and energy, as `_gram_traces` takes them


@dataclass(frozen=True, eq=False)
class GaussianNull:
    """The distribution of the scores of random forms of one shape."""

    symmetry_mean: float  # NaN where d_q ≠ d_k
    symmetry_std: float
    directionality: Floats  # [draws]
    centre: float  # mean of directionality: 0 where d_q = d_k, by symmetry
    dominance_mean: float = math.nan  # 0 where d_q = d_k; NaN where d < 2
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

        A null without spread has the standard deviation 0: for d = 1 every form is symmetric, and for d ≤ 5 no norm can
        exceed its threshold.
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


@lru_cache(maxsize=256)
def gaussian_null(d_query: int, d_key: int, r: int) -> GaussianNull:
    """Return the null of forms with factors [d_query, r] and [d_key, r].

    It is the same at every call: seeded by the shape, and cached on disk after the first draw.
    """

    dimensions = (r, 0, 1, 1.0)

    def draw(rng: np.random.Generator) -> Floats:
        std = _draw_symmetry_std(d_query, r, rng) if d_query == d_key else math.nan
        return np.concatenate([[std], _draw_norm_scores(d_query, d_key, dimensions, rng)])

    name = f"{d_query}-{d_key}-{r}" + ("-whole" if _has_few_entries(d_query, d_key, dimensions) else "")
    values = _cached(name, [d_query, d_key, r], draw)
    mean = 1 / d_query if d_query == d_key else math.nan
    return _null(d_query, d_key, mean, float(values[0]), values[1:])


@lru_cache(maxsize=256)
def rotary_null(d_query: int, d_key: int, groups: int, pairs: int, fixed: int, factor: float = 1.0) -> GaussianNull:
    """Return the null of the averages over all offsets of forms under rotary position embedding.

    groups: number of key heads in the form: 1 for a head, G for a layer
    pairs:  number n of rotating pairs per head
    fixed:  number u of dimensions per head that do not rotate
    factor: the attention factor, relative to what multiplies the other dimensions
    """
    energy = factor**4 if fixed else 1.0  # of a pair, relative to other dimensions; alone, its size does not matter
    dimensions = (fixed * groups, pairs, groups, energy)
    name = f"rope-{d_query}-{d_key}-{groups}-{pairs}-{fixed}" + (f"-{energy:.6g}" if energy != 1 else "")
    values = _cached(
        name + ("-whole" if _has_few_entries(d_query, d_key, dimensions) else ""),
        [d_query, d_key, groups, pairs, fixed],
        lambda rng: np.concatenate([[math.nan], _draw_norm_scores(d_query, d_key, dimensions, rng)]),
    )
    share = fixed / (fixed + 2 * pairs * energy)
    variance = 2 * share**2 + ((1 - share) ** 2 / pairs if pairs else 0.0)
    square = d_query == d_key
    mean, std = (share / d_query, math.sqrt(variance) / d_query) if square else (math.nan, math.nan)
    return _null(d_query, d_key, mean, std, values[1:])


def _null(d_query: int, d_key: int, mean: float, std: float, values: Floats) -> GaussianNull:
    """Return a null from the mean and standard deviation of the symmetry and what `_draw_norm_scores` returned."""
    square, draws = d_query == d_key, values[2:]
    return GaussianNull(
        symmetry_mean=mean,
        symmetry_std=std,
        directionality=draws,
        centre=0.0 if square else float(draws.mean()),
        dominance_mean=float(values[0]),
        dominance_std=float(values[1]),
    )


def _draw_symmetry_std(d: int, r: int, rng: np.random.Generator) -> float:
    """Return the standard deviation of the symmetry around its mean, from Gaussian factors of a reduced width."""
    width = min(d, REDUCED_WIDTH)
    rank = max(min(r, 8), round(r * width / d))  # lower ranks have long tails and need many more draws
    draws = max(400, FACTOR_ENTRIES // (rank * width))
    query, key = rng.standard_normal((2, draws, rank, width), dtype=np.float32)
    scores = score_forms(query.mT, key.mT).symmetry  # [draws]
    return float(np.sqrt(np.square(scores - 1 / width).mean())) * width / d


def _draw_norm_scores(d_query: int, d_key: int, dimensions: Dimensions, rng: np.random.Generator) -> Floats:
    """Return mean and standard deviation of the dominance of random forms, and their directionality `[2 + draws]`."""
    square = d_query == d_key
    if _has_few_entries(d_query, d_key, dimensions):
        return _summary(*_draw_whole_forms(d_query, d_key, dimensions, rng), square=square)
    columns = _draw_row_norms(d_key, _gram_traces(d_query, *dimensions), rng)  # [draws, d_k]
    traces = _gram_traces(d_key, *dimensions)
    direction, ratio = [], []
    for some in np.array_split(columns, 16):  # wide forms take much memory
        rows = _draw_row_norms(d_query, traces, rng, len(some))  # [some, d_q]
        direction.append(directionality(rows, some))
        ratio.append(dominance(rows, some))
    return _summary(np.concatenate(direction), np.concatenate(ratio), square=square)


def _summary(direction: Floats, ratio: Floats, *, square: bool) -> Floats:
    """Return what `_draw_norm_scores` returns, from the directionality and the dominance of each draw."""
    mean = 0.0 if square else float(ratio.mean())
    std = math.sqrt(float(np.square(ratio - mean).mean()))
    return np.concatenate([[mean if std > 0 else math.nan, std], direction])


def _has_few_entries(d_query: int, d_key: int, dimensions: Dimensions) -> bool:
    """Return whether random forms of this shape are drawn with their whole factors."""
    real, pairs, groups, _ = dimensions
    return (d_query + d_key) * (real + 2 * pairs * groups) <= WHOLE_ENTRIES


def _draw_whole_forms(
    d_query: int, d_key: int, dimensions: Dimensions, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the directionality and the dominance of random forms, each `[draws]`, from their whole factors."""
    real, pairs, groups, energy = dimensions
    query, key = (rng.standard_normal((DRAWS, d, real)) for d in (d_query, d_key))
    if not pairs:
        scores = score_forms(query, key)
        return scores.directionality, scores.dominance
    fixed = real // groups
    rotary = RotaryPairs.halves(np.arange(1.0, pairs + 1), factor=energy**0.25)
    whole = []  # [draws, d, G·r], the pairs of each key head before its other dimensions
    for still in (query, key):
        shape = *still.shape[:2], groups
        turning = rng.standard_normal((2, pairs, *shape)).transpose(2, 3, 4, 0, 1)  # [draws, d, G, 2, pairs]
        heads = np.concatenate([turning.reshape(*shape, 2 * pairs), still.reshape(*shape, fixed)], 3)
        whole.append(heads.reshape(*shape[:2], -1))
    scores = score_forms(whole[0], whole[1], rotary, groups=groups)
    return scores.directionality_rope, scores.dominance_rope


def _gram_traces(d: int, real: int, pairs: int, groups: int, energy: float = 1.0) -> Floats:
    """Return E tr G, E tr G², E tr G³ of the averaged Gram matrix G of Gaussian factors of width d.

    real:   dimensions of the form that do not rotate: their part of G is a real Wishart matrix
    pairs:  rotary pairs, each with a complex Wishart matrix [groups, groups], whose eigenvalues all occur twice
    energy: what multiplies the eigenvalues of the pairs
    """
    n, p, g = float(d), float(real), float(groups)
    of_real = n * p * np.array([1, n + p + 1, n * n + 3 * n * p + p * p + 3 * n + 3 * p + 4])
    of_pair = n * g * np.array([1, n + g, n * n + 3 * n * g + g * g + 1])
    traces: Floats = of_real + 2 * pairs * of_pair * energy ** np.arange(1, 4)
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
    complete = values.shape == (DRAWS + 3,) and values.dtype == np.float64
    return values if complete and np.isfinite(values[3:]).all() and not values[0] <= 0 else None


def _write_cached(path: Path, values: Floats) -> None:
    """Cache the draws; where that is not possible they are drawn again next time."""
    try:
        with cache_file(path) as file:
            np.save(file, values)
    except OSError:
        pass
