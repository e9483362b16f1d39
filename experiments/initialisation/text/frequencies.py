"""The held-out loss of a model that ignores its input and knows only how often each token occurs."""

from __future__ import annotations

import numpy as np

from attngeo.errors import InputError
from attngeo.training.data.tokens import Tokens


def frequency_loss(tokens: Tokens) -> tuple[float, float]:
    """Return the mean and the standard deviation, over the held-out tokens, of their loss in nats.

    Frequencies are those of the training tokens, each counted once more so that none is 0. Special tokens are left
    out, because they are not predicted.
    """
    ordinary = np.ones(tokens.vocabulary, dtype=bool)  # [vocabulary]
    ordinary[list(tokens.special)] = False
    seen, asked = (
        np.bincount(tokens.array(part), minlength=tokens.vocabulary)[ordinary] for part in ("train", "valid")
    )
    if not asked.any():
        raise InputError(f"{tokens.folder}: has no held-out tokens to predict")
    losses = np.log((seen + 1).sum()) - np.log(seen + 1)  # [ordinary]
    mean = np.average(losses, weights=asked)
    return float(mean), float(np.sqrt(np.average((losses - mean) ** 2, weights=asked)))
