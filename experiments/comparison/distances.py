"""The distance of checkpoints of training runs on the same texts, and its rank correlation with training time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.applications.compare.distance import HeadGeometry, fused_gromov_wasserstein
from attngeo.arrays import Floats
from attngeo.organization.capture import capture
from attngeo.organization.tensor import NetworkTensor
from attngeo.training.data.tokens import Tokens
from experiments.comparison.small_models import LENGTH, new_model, train_model

STEPS = (0, 30, 100, 200, 300)
TEXTS = 4  # rows of held-out tokens


def run_geometries(kind: str, tokens: Tokens, seed: int) -> list[HeadGeometry]:
    """Return the head geometry of one run at each of `STEPS`, on the same held-out rows."""
    import torch

    ids = np.asarray(tokens.array("valid")[: TEXTS * LENGTH]).astype(np.int64).reshape(TEXTS, LENGTH)
    inputs = [{"input_ids": torch.from_numpy(row[None])} for row in ids]
    model = new_model(kind, tokens.vocabulary, seed)
    found = []
    for _ in train_model(model, tokens, STEPS, order=0):
        model.eval()
        captured = capture(model, inputs)
        found.append(HeadGeometry.of([captured] if isinstance(captured, NetworkTensor) else captured))
        model.train()
    return found


def distance_matrix(geometries: Sequence[HeadGeometry]) -> Floats:
    """Return the fused Gromov–Wasserstein distances of all pairs, [n, n]."""
    n = len(geometries)
    matrix = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            a, b = geometries[i], geometries[j]
            matrix[i, j] = matrix[j, i] = fused_gromov_wasserstein(a.affinity, b.affinity, a.depth, b.depth)
    return matrix


def time_correlation(matrix: Floats) -> float:
    """Return Spearman's correlation of the distance from the last checkpoint with the time that is left."""
    from scipy.stats import spearmanr

    distance = matrix[-1, :-1]
    return float(spearmanr(distance, np.arange(len(distance), 0, -1)).statistic)
