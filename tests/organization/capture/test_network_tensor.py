"""Network tensors: parts of one keep the labels and the mask that belong to them."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.organization import NetworkTensor

QUERIES, KEYS, HEADS = 5, 6, 4


@pytest.mark.parametrize("per_head", [False, True])
def test_a_part_has_the_values_labels_and_mask_of_its_indices(per_head):
    rng = np.random.default_rng(0)
    mask = rng.random((QUERIES, KEYS, HEADS) if per_head else (QUERIES, KEYS)) < 0.5
    labels = [[f"{name}{i}" for i in range(count)] for name, count in (("q", QUERIES), ("k", KEYS), ("L0H", HEADS))]
    tensor = NetworkTensor(rng.normal(size=(QUERIES, KEYS, HEADS)), mask, *labels, name="made")
    order = [rng.permutation(count) for count in (QUERIES, KEYS, HEADS)]
    for q, k, h in (order, (order[0][:2], order[1][:3], order[2][:2])):
        part = tensor.take(q, k, h)
        assert part.mask is not None and part.mask.ndim == mask.ndim
        for i, j, m in np.ndindex(part.shape):
            assert part.values[i, j, m] == tensor.values[q[i], k[j], h[m]]
            own, whole = ((i, j, m), (q[i], k[j], h[m])) if per_head else ((i, j), (q[i], k[j]))
            assert part.mask[own] == mask[whole]
        assert (part.queries, part.keys) == (tuple(f"q{i}" for i in q), tuple(f"k{j}" for j in k))
        assert (part.heads, part.stage, part.name) == (tuple(f"L0H{m}" for m in h), "logits", "made")
