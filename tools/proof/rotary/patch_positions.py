"""Positions of image patches on two axes, from the angles of which a live model takes cosines."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attngeo.weights.layout.rotary import RotaryPairs
from tools.proof.product_recorder import Product


def patch_positions(product: Product, rotary: RotaryPairs) -> Iterator[Tensor]:
    """Yield positions [2, N] that the model's angles may mean; tokens without angles do not rotate, as at position 0.

    The first frequency is 1 in every model, so the first angle of an axis is the position. Models lay their angles out
    as [2, N, ...], [N, 2, ...], or with the pairs of both axes in the last dimension.
    """
    assert rotary.axes is not None
    tokens = product.query.shape[1]
    for angles in reversed(product.angles):
        for found in _read_table(angles.squeeze(), rotary):
            missing = tokens - found.shape[1]
            if missing < 0:
                continue
            zeros = found.new_zeros(2, missing)
            for padded in (torch.cat([zeros, found], 1), torch.cat([found, zeros], 1))[: 2 if missing else 1]:
                yield padded
                yield padded.flip(0)


def _read_table(table: Tensor, rotary: RotaryPairs) -> Iterator[Tensor]:
    """Yield positions [2, N'] from a table of angles."""
    assert rotary.axes is not None
    if table.dim() == 3 and table.shape[0] == 2:
        yield table[..., 0]
    if table.dim() == 3 and table.shape[1] == 2:
        yield table[..., 0].T
    if table.dim() == 2 and table.shape[1] in (len(rotary.pairs), 2 * len(rotary.pairs)):
        second = int(rotary.axes.argmax())  # the first pair of the second axis
        theta = float(rotary.frequencies[second])
        for repeat in (1, 2) if table.shape[1] == 2 * len(rotary.pairs) else (1,):
            yield torch.stack([table[:, 0], table[:, repeat * second] / theta])
