"""The heads that pruned layers still have. `attngeo.prune` writes them into the config; here they are read back.

    "attngeo_pruned": {"stacks": {"decoder": {"heads": 9, "key_heads": 3, "head_size": 64, "kept": {"0": [0, 3, 6]}}}}

A stack states the head counts of the full model, and the numbers of the query heads that each layer has kept. The key
heads that a layer has kept are read by equally many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.errors import LayoutError
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.storage.base import Heads

CONFIG_KEY = "attngeo_pruned"


def is_pruned(config: Mapping[str, Any] | None) -> bool:
    """Return whether a config is that of a pruned model."""
    return bool(config) and config.get(CONFIG_KEY) is not None  # type: ignore[union-attr]


def pruned_heads(config: Mapping[str, Any] | None, stack: str, layer: int) -> Heads | None:
    """Return the heads of one layer of a pruned model; None where the config says nothing about the layer.

    >>> stacks = {"decoder": {"heads": 9, "key_heads": 3, "head_size": 64, "kept": {"0": [0, 2, 3, 5]}}}
    >>> heads = pruned_heads({"attngeo_pruned": {"stacks": stacks}}, "decoder", 0)
    >>> heads.queries, heads.keys, heads.numbers
    (4, 2, (0, 2, 3, 5))
    """
    if config is None or not is_pruned(config):
        return None
    try:
        described = config[CONFIG_KEY]["stacks"].get(stack)
        kept = None if described is None else described["kept"].get(str(layer))
        return None if kept is None else _heads(described, kept)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise LayoutError(f"config.json: {CONFIG_KEY} does not describe the heads of {stack} layer {layer}") from None


def pruned_group(config: Mapping[str, Any] | None, stack: str) -> int | None:
    """Return how many query heads of a stack shared a key head before it was pruned; None where it was not.

    >>> stacks = {"decoder": {"heads": 9, "key_heads": 3, "head_size": 64, "kept": {"0": [0, 2, 3, 5]}}}
    >>> pruned_group({"attngeo_pruned": {"stacks": stacks}}, "decoder")
    3
    """
    if config is None or not is_pruned(config):
        return None
    try:
        described = config[CONFIG_KEY]["stacks"].get(stack)
        return None if described is None else int(described["heads"]) // int(described["key_heads"])
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise LayoutError(f"config.json: {CONFIG_KEY} does not describe the heads of {stack}") from None


def pruned_sites(sites: Sequence[Site], config: Mapping[str, Any] | None) -> dict[str, Heads]:
    """Return the heads of each site of a pruned model, by its path; empty for models that were not pruned."""
    if not is_pruned(config):
        return {}
    named = ((site.path, pruned_heads(config, stack, layer)) for stack, layer, site in name_stacks(sites, config))
    return {path: heads for path, heads in named if heads is not None}


def _heads(described: Mapping[str, int], kept: Sequence[int]) -> Heads:
    queries, keys, size = (described[name] for name in ("heads", "key_heads", "head_size"))
    if not all(type(n) is int and n > 0 for n in (queries, keys, size)) or queries % keys:
        raise ValueError
    if not kept or list(kept) != sorted(set(kept)) or not all(type(n) is int and 0 <= n < queries for n in kept):
        raise ValueError
    sizes = set(Counter(head // (queries // keys) for head in kept).values())  # query heads that read a key head
    if len(sizes) > 1:
        raise ValueError
    return Heads(len(kept), len(kept) // sizes.pop(), size, numbers=tuple(kept))
