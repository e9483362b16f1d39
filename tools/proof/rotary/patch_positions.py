"""Positions of image patches on two axes, from the angles of which a live model takes cosines."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attngeo.weights.layout.rotary import RotaryPairs
from tools.proof.product_recorder import Product


def patch_positions(product: Product, rotary: RotaryPairs) -> Iterator[Tensor]:
    """Yield positions [2, N]: the angle of the first pair of each axis, divided by its frequency.

    Models lay their angles out as [2, N, n/2], [N, 2, n/2], [N, n] or [N, 2n]; n pairs, half of them for each axis.
    """
    assert rotary.axes is not None
    tokens, pairs = product.query.shape[1], len(rotary.pairs)
    half = pairs // 2
    first = float(rotary.frequencies[0])
    for angles in reversed(product.angles):
        table = angles.squeeze()
        if table.shape == (2, tokens, half):
            yield table[..., 0] / first
        elif table.shape == (tokens, 2, half):
            yield table[..., 0].T / first
        elif table.shape in ((tokens, pairs), (tokens, 2 * pairs)):
            yield torch.stack([table[:, 0], table[:, half]]) / first
