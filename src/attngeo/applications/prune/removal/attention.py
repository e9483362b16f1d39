"""Attention of a layer that lost heads and receives a position bias for all heads of the full model.

The first layer of a T5 computes it for all others. transformers looks functions up in its `AttentionInterface`; the one
registered here selects the heads of the bias and calls the model's own function.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from attngeo.applications.prune.removal.own_config import OwnConfig
from attngeo.errors import InputError
from attngeo.live.attention_modules import eager_function

IMPLEMENTATION = "attngeo_pruned"  # the name under which transformers finds the function
# The model's own functions that were compared with the full model. Others are refused.
_SUPPORTED = ("eager", "sdpa", "attngeo_recorded")


def use_pruned_attention(module: nn.Module, own: dict[str, Any], bias_heads: tuple[int, ...]) -> None:
    """Let `module` compute its attention through this function.

    own:        further values of the config that are the module's own
    bias_heads: the heads of the position bias that the module still has
    """
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    module.config = OwnConfig(module.config, {**own, "_attn_implementation": IMPLEMENTATION})
    module.bias_heads = bias_heads


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute the attention of `module`; query [B, H, Q, r], key and value [B, H, K, r]."""
    from transformers import AttentionInterface

    name = module.config.attngeo_shared._attn_implementation
    if name not in _SUPPORTED or options.get("cache") is not None:
        what = "a paged cache" if name in _SUPPORTED else f"attention implementation {name}"
        raise InputError(f"{what}: not supported by a pruned layer with a position bias; use sdpa or eager")
    if options.get("position_bias") is not None:
        options["position_bias"] = select_heads(options["position_bias"], module.bias_heads)  # [1, H, Q, K]
    function = AttentionInterface().get_interface(name, eager_function(module))
    return function(module, query, key, value, attention_mask, **options)


def select_heads(heads: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Return the heads `kept` of a tensor [B, H, Q, K].

    >>> select_heads(torch.arange(5)[None, :, None, None], (0, 3, 4)).flatten().tolist()
    [0, 3, 4]
    """
    runs = [[head for _, head in run] for _, run in groupby(enumerate(kept), key=lambda pair: pair[1] - pair[0])]
    return torch.cat([heads[:, run[0] : run[-1] + 1] for run in runs], 1)
