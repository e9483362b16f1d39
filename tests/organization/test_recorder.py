"""The mask of a captured network: one for all heads where they agree, otherwise one per head, in their order."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def recorder(masks, heads=2):
    """Return a recorder that has recorded layers with these masks."""
    from attngeo.organization.recorder import TensorRecorder

    found = TensorRecorder("made", SimpleNamespace(attentions=()), None, "logits", (lambda _: None,) * 2)
    found.planned_heads = dict.fromkeys(range(len(masks)), heads)
    found.masks = dict(enumerate(masks))
    found.values = np.zeros((3, 4, heads * len(masks)), np.float32)
    return found


def test_layers_and_heads_keep_their_own_masks():
    full = None
    window = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) > 0.5  # [Q, K], of all heads of a layer
    by_head = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) > 0.5  # [heads, Q, K]
    mask = recorder([window, full, by_head]).mask()
    assert mask.shape == (3, 4, 6)
    for head, expected in enumerate((window, window, True, True, by_head[0], by_head[1])):
        np.testing.assert_array_equal(mask[:, :, head], np.broadcast_to(np.asarray(expected), (3, 4)))
    np.testing.assert_array_equal(recorder([window, window]).mask(), window)
    assert recorder([full, full]).mask() is None
