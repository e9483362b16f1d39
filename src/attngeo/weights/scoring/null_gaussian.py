"""What chance gives: the scores of M = W_q W_kᵀ when the entries of W_q and W_k are independent Gaussians.

Symmetry has mean 1/d exactly, because turning W_q by a random rotation of R^d leaves its law unchanged. Its spread is
drawn at a reduced shape (d at most 64, r in proportion but not under 8) and carried over by the law std ∝ 1/d, which
holds for every r. Directionality is drawn at full size, but without the d×r factors: given W_k, the ρ_i² are
independent and each is Σ_a λ_a z_a² with λ the spectrum of W_kᵀW_k, so they are drawn from the shifted gamma law with
the same first three cumulants (Σλ, 2Σλ², 8Σλ³, at their expectation over W_k); columns likewise, independently.

Against draws of the whole factors at full size (2,000; 1,000 at r = 384; 400 and 200 beyond; ± one standard error,
which is about 0.03 and 2% for what is drawn here):

    d     r     d × std of symmetry        std of directionality
                full size       here       full size         here
    64    8     1.40 ± 0.02     1.44       0.539 ± 0.009     0.523
    64    64    1.39 ± 0.02     1.48       0.601 ± 0.010     0.601
    384   32    1.40 ± 0.02     1.43       0.227 ± 0.004     0.239
    384   384   1.41 ± 0.03     1.44       0.250 ± 0.006     0.247
    1024  256   1.42 ± 0.05     1.42       0.151 ± 0.005     0.152
    4096  128   1.42 ± 0.07     1.40       0.069 ± 0.003     0.076
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from attngeo.io.cache import cache_dir, cache_file
from attngeo.weights.scoring.factored import GAMMA
from attngeo.weights.scoring.products import Doubles

DRAWS = 999
REDUCED = 64  # width at which symmetry is drawn
NUMBERS = 2**20  # in each side's factors, all draws together: the more draws, the smaller the shape
LAW = 1  # part of the cached files' names: raise it when the draws change


@dataclass(frozen=True, eq=False)
class Null:
    """The scores of random forms of one shape."""

    symmetry_mean: float  # NaN where the widths differ
    symmetry_std: float
    directionality: Doubles  # [draws]
    centre: float  # mean of directionality, 0 where the widths are the same

    def symmetry_z(self, score: float) -> float:
        """Standard deviations above chance."""
        return (score - self.symmetry_mean) / self.symmetry_std

    def directionality_z(self, score: float) -> float:
        """Standard deviations above chance; NaN where chance has no spread (d ≤ 5: nothing can stand out)."""
        std = float(np.sqrt(np.square(self.directionality - self.centre).mean()))
        return (score - self.centre) / std if std > 0 else math.nan

    def directionality_p(self, score: float) -> float:
        """Two-sided p value (1 + draws at least as far from the centre)/(1 + draws)."""
        if math.isnan(score):
            return math.nan
        as_far = np.abs(self.directionality - self.centre) >= abs(score - self.centre)
        return (1 + int(as_far.sum())) / (1 + len(self.directionality))


@lru_cache(maxsize=256)
def null(d_query: int, d_key: int, r: int) -> Null:
    """The null of forms with factors [d_query, r] and [d_key, r]; the same at every call, drawn once per machine."""
    path = cache_dir() / "nulls" / f"{LAW}-{d_query}-{d_key}-{r}.npy"
    values = read(path)
    if values is None:
        rng = np.random.default_rng([LAW, d_query, d_key, r])
        std = symmetry_std(d_query, r, rng) if d_query == d_key else math.nan
        values = np.concatenate([[std], directionality(d_query, d_key, r, rng)])
        write(path, values)
    square = d_query == d_key
    draws = values[1:]
    return Null(1 / d_query if square else math.nan, float(values[0]), draws, 0.0 if square else float(draws.mean()))


def symmetry_std(d: int, r: int, rng: np.random.Generator) -> float:
    """Spread of the symmetry around its mean, from Gaussian factors of a reduced width."""
    width = min(d, REDUCED)
    rank = max(min(r, 8), round(r * width / d))  # lower ranks have long tails and need many more draws
    draws = max(400, NUMBERS // (rank * width))
    query, key = rng.standard_normal((2, draws, rank, width), dtype=np.float32)
    turned = np.swapaxes(key, 1, 2)  # [draws, width, rank]
    cross = query @ turned  # C [draws, rank, rank]
    norm2 = ((query @ np.swapaxes(query, 1, 2)) * (key @ turned)).sum((1, 2))
    score = (cross * np.swapaxes(cross, 1, 2)).sum((1, 2)) / norm2
    return float(np.sqrt(np.square(score - 1 / width, dtype=np.float64).mean())) * width / d


def directionality(d_query: int, d_key: int, r: int, rng: np.random.Generator) -> Doubles:
    """Directionality of `DRAWS` random forms."""
    rows, columns = (
        excess(norms(count, other, r, rng)) for count, other in ((d_query, d_key), (d_key, d_query))
    )  # [draws]
    above = rows + columns
    return np.divide(rows - columns, above, out=np.zeros(DRAWS), where=above > 0)


def norms(count: int, other: int, r: int, rng: np.random.Generator) -> Doubles:
    """`count` row norms of each form, `[draws, count]`, the other side's factor being [other, r]."""
    n, p = float(other), float(r)
    trace1 = n * p  # E tr G, E tr G², E tr G³ of the Gram G of a Gaussian n×p matrix
    trace2 = n * p * (n + p + 1)
    trace3 = n * p * (n * n + 3 * n * p + p * p + 3 * n + 3 * p + 4)
    shape, scale = trace2**3 / trace3**2 / 2, 2 * trace3 / trace2
    shift = trace1 - trace2**2 / trace3  # ≥ 0 by Cauchy and Schwarz
    squares: Doubles = shift + scale * rng.standard_gamma(shape, size=(DRAWS, count))
    np.sqrt(squares, out=squares)
    return squares


def excess(values: Doubles) -> Doubles:
    """Σ (ρ − t) over ρ > t = mean + γ·std, draw by draw."""
    if values.shape[1] < 2:
        return np.zeros(len(values))
    threshold = values.mean(1) + GAMMA * values.std(1, ddof=1)
    values -= threshold[:, None]
    above: Doubles = np.maximum(values, 0, out=values).sum(1)
    return above


def read(path: Path) -> Doubles | None:
    """Cached draws, or None where there are none to be trusted."""
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    whole = isinstance(values, np.ndarray) and values.shape == (DRAWS + 1,) and values.dtype == np.float64
    return values if whole and np.isfinite(values[1:]).all() and not values[0] <= 0 else None


def write(path: Path, values: Doubles) -> None:
    """Keep the draws; where that is not possible they are drawn again next time."""
    try:
        with cache_file(path) as file:
            np.save(file, values)
    except OSError:
        pass
