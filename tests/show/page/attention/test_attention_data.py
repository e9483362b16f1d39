"""An organised network as plain data for the page: the order of each axis, its folders and its labels."""

from __future__ import annotations

import numpy as np

from attngeo.organization import NetworkTensor, organize, planted
from attngeo.show.page.attention import attention_data


def test_axes_are_drawn_in_the_order_of_their_trees() -> None:
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(5)]
    organization = organize(NetworkTensor(planted((18, 14, 10), seed=3)[0], heads=heads, name="made"))
    data = attention_data(organization)
    assert data["heads"] == heads and data["shape"] == [18, 14, 10]  # in the given order
    for tree, drawn in zip(organization.trees, data["trees"], strict=True):
        assert drawn["order"] == tree.order.tolist() != sorted(tree.order.tolist())
        assert (drawn["depth"], len(drawn["first"])) == (tree.depth, tree.size - 1)
        ordered = tree.levels[:, tree.order]
        # A range of the order is one folder on each of its levels.
        for first, end, top, bottom in drawn["folders"]:
            for level in range(top, bottom + 1):
                (label,) = set(ordered[level, first:end].tolist())
                assert np.flatnonzero(ordered[level] == label).tolist() == list(range(first, end))
        assert len(drawn["folders"]) == tree.folders.count
