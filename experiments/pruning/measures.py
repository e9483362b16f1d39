"""Measures of a pruned model on evaluation rows: the loss of each window, or the similarities of its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attngeo.applications.prune.rows import Batch, token_losses
from attngeo.live.frozen import frozen_model
from attngeo.live.load import run_model

Losses = NDArray[np.float64]

BLOCKS = 32  # into which consecutive windows are put together at most, and sentences; intervals are over them


def blocks(losses: Losses) -> Losses:
    """Return the mean loss of each block of consecutive windows.

    >>> blocks(np.arange(64.0))[:2].tolist()
    [0.5, 2.5]
    """
    return np.array([part.mean() for part in np.array_split(losses, min(BLOCKS, len(losses)))])


def window_losses(model: Any, batches: Sequence[Batch]) -> Losses:
    """Return the mean loss of each row, for paired comparisons over rows."""
    found = []
    with frozen_model(model):
        for batch in batches:
            batch = batch.to(model.device, model.dtype)
            assert batch.targets is not None
            found.append(token_losses(run_model(model, batch.inputs).logits, batch.targets).double().cpu())
    losses: Losses = torch.cat(found).numpy()
    return losses


def sentence_embeddings(model: Any, batches: Sequence[Batch]) -> NDArray[np.float64]:
    """Return the embedding of each row: the mean of its last hidden states, with norm 1."""
    found = []
    with frozen_model(model):
        for batch in batches:
            batch = batch.to(model.device, model.dtype)
            hidden = run_model(model, batch.inputs).last_hidden_state.double()  # [B, T, d]
            mask = batch.inputs["attention_mask"][..., None]  # [B, T, 1]
            mean = (hidden * mask).sum(1) / mask.sum(1)  # [B, d]
            found.append((mean / mean.norm(dim=1, keepdim=True)).cpu())
    embeddings: NDArray[np.float64] = torch.cat(found).numpy()
    return embeddings


def disagreement(full: NDArray[np.float64], pruned: NDArray[np.float64], sets: int = BLOCKS) -> Losses:
    """Return 1 − Spearman correlation of the sentence similarities, for each of `sets` sets of sentences."""
    from scipy.stats import spearmanr

    found = []
    for part in np.array_split(np.arange(len(full)), sets):
        upper = np.triu_indices(len(part), 1)
        similarities = [(one[part] @ one[part].T)[upper] for one in (full, pruned)]
        found.append(1 - float(spearmanr(*similarities).statistic))
    return np.array(found)
