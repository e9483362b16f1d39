"""Attention logits c·q kᵀ from the tensors that an attention function receives: scale, grouped keys, mask, bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MASKED = -1e4  # an additive mask at or below this value excludes a key; no position bias is that low


def allowed_pairs(mask: Tensor) -> Tensor:
    """Return the boolean mask, true where a query may attend to a key, of a boolean or an additive mask."""
    return mask if mask.dtype == torch.bool else mask > MASKED


def logit_scale(query: Tensor, scale: float | None) -> float:
    """Return c: `scale`, or the default 1/√r if it is None. query: [..., r]."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def repeat_keys(key: Tensor, heads: int) -> Tensor:
    """Return keys [..., H, K, r], one for each query head, from [..., G, K, r]; head h reads key head h // (H/G)."""
    groups = key.shape[-3]
    return key if groups == heads else key.repeat_interleave(heads // groups, -3)


def attention_logits(query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """Return the logits [H, Q, K] in float32: c·q kᵀ, soft-capped, plus the position bias, before the mask.

    query:   [1, H, Q, r]
    key:     [1, G, K, r]
    mask:    [1, 1 or H, 1 or Q, K]; finite entries of an additive mask are a position bias (BEiT)
    options: keyword arguments of the attention function; "scaling", "softcap" and "position_bias" (T5) are used
    """
    query, key = query[0].float(), repeat_keys(key[0].float(), query.shape[1])  # [H, Q, r], [H, K, r]
    logits = (query @ key.transpose(1, 2)).mul_(logit_scale(query, options.get("scaling")))  # [H, Q, K]
    if options.get("softcap") is not None:
        logits.div_(options["softcap"]).tanh_().mul_(options["softcap"])
    if options.get("position_bias") is not None:
        logits += options["position_bias"][0]
    if mask is not None and mask.dtype != torch.bool:
        bias = mask[0].float()
        bias = bias.masked_fill(bias <= MASKED, 0)
        if bias.any():
            logits += bias
    return logits
