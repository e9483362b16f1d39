"""Removal of the same number of heads from every layer, so that the config of the model type can say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.applications.prune.criteria.greedy import Choice, LayerCosts, next_step
from attngeo.applications.prune.criteria.units import split_groups
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

UNIFORM_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2")


def uniform_steps(config: PreTrainedConfig, layer: PrunableLayer, share: float, unit: str) -> int:
    """Return how many steps every layer makes, so that nearest to `share` of its heads go and the config accepts it."""
    if config.model_type not in UNIFORM_TYPES:
        raise InputError(f"uniform: model type {config.model_type}; its config allows {', '.join(UNIFORM_TYPES)} only")
    heads, split = layer.heads, split_groups(layer, unit)
    most = (heads.group if split else heads.keys) - 1
    lost = heads.keys if split else heads.group  # query heads of one step
    left = {steps: heads.queries - steps * lost for steps in range(1, most + 1)}
    accepted = [n for n in left if _accepts(config, left[n], heads.keys if split else heads.keys - n, heads.size)]
    if not accepted:
        raise InputError(
            f"uniform: {heads.queries} query and {heads.keys} key heads leave no smaller count that the config accepts"
        )
    return min(accepted, key=lambda steps: (abs(left[steps] - (1 - share) * heads.queries), steps))


def set_counts(config: PreTrainedConfig, queries: int, keys: int, size: int) -> None:
    """Write the head counts into a config, with the head size, which is not width / heads any more."""
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = queries, keys, size


def choose_uniform(layers: Sequence[LayerCosts], places: Sequence[Sequence[int]], steps: int) -> list[Choice]:
    """Return the removals of `steps` steps of every layer."""
    chosen: list[Choice] = []
    for index, (layer, own) in enumerate(zip(layers, places, strict=True)):
        for _ in range(steps):
            step = next_step(index, layer, own)
            for choice in step:
                layer.remove(choice.unit)
            chosen += step
    return chosen


def _accepts(config: PreTrainedConfig, queries: int, keys: int, size: int) -> bool:
    """Return whether a config of this type can be made with these head counts."""
    plain = config.to_dict() | {"num_attention_heads": queries, "num_key_value_heads": keys}
    try:
        type(config)(**{**plain, "head_dim": size})
    except Exception:  # configs validate themselves and raise errors of several kinds
        return False
    return True
