"""Attention of a layer that lost heads, where the model's own function does not fit any more.

Two layers need it: one whose key heads are read by unequal numbers of query heads, and one that receives a position
bias for all heads of the full model (T5, whose first layer computes it for all others). transformers looks functions up
in its `AttentionInterface`; the one registered here makes the arguments fit and calls the model's own function.
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


def use_pruned_attention(
    module: nn.Module, own: dict[str, Any], group_sizes: tuple[int, ...] | None, bias_heads: tuple[int, ...] | None
) -> None:
    """Let `module` compute its attention through this function.

    own:         further values of the config that are the module's own
    group_sizes: how many query heads read each key head; None: equally many
    bias_heads:  the heads of the position bias that the module still has; None: it has no position bias
    """
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    module.config = OwnConfig(module.config, {**own, "_attn_implementation": IMPLEMENTATION})
    module.group_sizes, module.bias_heads = group_sizes, bias_heads


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute the attention of `module`; query [B, H, Q, r], key and value [B, G, K, r]."""
    from transformers import AttentionInterface

    name = module.config.attngeo_shared._attn_implementation
    if name not in _SUPPORTED or options.get("cache") is not None:
        what = "a paged cache" if name in _SUPPORTED else f"attention implementation {name}"
        why = "with a position bias" if module.group_sizes is None else "whose key groups differ in size"
        raise InputError(f"{what}: not supported by a pruned layer {why}; use sdpa or eager")
    if module.group_sizes is not None:
        key, value = repeat_heads(key, module.group_sizes), repeat_heads(value, module.group_sizes)  # [B, H, K, r]
    if module.bias_heads is not None and options.get("position_bias") is not None:
        options["position_bias"] = select_heads(options["position_bias"], module.bias_heads)  # [1, H, Q, K]
    function = AttentionInterface().get_interface(name, eager_function(module))
    return function(module, query, key, value, attention_mask, **options)


def repeat_heads(heads: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Return heads [B, H, K, r] from [B, G, K, r]: head g repeated counts[g] times.

    >>> repeat_heads(torch.tensor([5, 7])[None, :, None, None], (1, 2)).flatten().tolist()
    [5, 7, 7]
    """
    # Slices instead of an index: an index tensor would have to be kept on the device of the model.
    return torch.cat([heads[:, g : g + 1].expand(-1, count, -1, -1) for g, count in enumerate(counts)], 1)


def select_heads(heads: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Return the heads `kept` of a tensor [B, H, Q, K].

    >>> select_heads(torch.arange(5)[None, :, None, None], (0, 3, 4)).flatten().tolist()
    [0, 3, 4]
    """
    runs = [[head for _, head in run] for _, run in groupby(enumerate(kept), key=lambda pair: pair[1] - pair[0])]
    return torch.cat([heads[:, run[0] : run[-1] + 1] for run in runs], 1)
