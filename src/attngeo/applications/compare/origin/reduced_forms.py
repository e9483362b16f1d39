"""The reduced shape on which the relation of two models is tested: some hidden dimensions, layers and heads.

The subset is drawn once from a seed. It is the same for both models, for the statistic and for every draw of the null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.applications.compare.origin.matched_cosine import unit_forms
from attngeo.arrays import AnyFloats, Ints
from attngeo.weights.scoring.layer import LayerFactors

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
