"""Removal of the same number of heads from every layer and group, so that the config of the model type can say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.criteria.greedy import Choice, LayerCosts
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

UNIFORM_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2")


@dataclass(frozen=True)
class UniformCounts:
    """The head counts that every layer has after a uniform removal."""

    queries: int
    keys: int


def uniform_counts(config: PreTrainedConfig, layer: PrunableLayer, share: float, unit: str) -> UniformCounts:
    """Return the counts nearest to removing `share` of the heads that the config accepts.

    unit: "query": every group loses the same number of query heads (key heads go where each has one query head);
          "group": every layer loses the same number of groups
    """
    if config.model_type not in UNIFORM_TYPES:
        raise InputError(f"uniform: model type {config.model_type}; its config allows {', '.join(UNIFORM_TYPES)} only")
    heads, keys, group = layer.heads.queries, layer.heads.keys, layer.heads.group
    if unit == "query" and group > 1:
        candidates = [UniformCounts(keys * kept, keys) for kept in range(1, group)]
    else:
        candidates = [UniformCounts(group * kept, kept) for kept in range(1, keys)]
    accepted = [counts for counts in candidates if _accepts(config, counts, layer.heads.size)]
    if not accepted:
        raise InputError(f"uniform: {heads} query and {keys} key heads leave no smaller count that the config accepts")
    return min(accepted, key=lambda counts: (abs(counts.queries - (1 - share) * heads), -counts.queries))


def set_counts(config: PreTrainedConfig, counts: UniformCounts, size: int) -> None:
    """Write the head counts into a config, with the head size, which is not width / heads any more."""
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = counts.queries, counts.keys, size


def choose_uniform(
    layers: Sequence[PrunableLayer], costs: Sequence[LayerCosts], units: Sequence[Any], counts: UniformCounts
) -> list[Choice]:
    """Return the cheapest units of each group (or of each layer, where whole groups go), equally many everywhere."""
    chosen: list[Choice] = []
    for index, (layer, cost, own) in enumerate(zip(layers, costs, units, strict=True)):
        whole = counts.keys < layer.heads.keys
        places = {unit: 0 if whole else layer.key_of[heads[0]] for unit, heads in enumerate(own)}
        left = {place: counts.keys if whole else counts.queries // counts.keys for place in set(places.values())}
        size = {place: sum(other == place for other in places.values()) for place in left}
        while any(size[place] > left[place] for place in left):
            current = cost.costs()
            _, unit = min((current[unit].cost, unit) for unit in current if size[places[unit]] > left[places[unit]])
            chosen.append(Choice(index, unit, current[unit]))
            cost.remove(unit)
            size[places[unit]] -= 1
    return chosen


def _accepts(config: PreTrainedConfig, counts: UniformCounts, size: int) -> bool:
    """Return whether a config of this type can be made with these head counts."""
    plain = config.to_dict() | {"num_attention_heads": counts.queries, "num_key_value_heads": counts.keys}
    try:
        type(config)(**{**plain, "head_dim": size})
    except Exception:  # configs validate themselves and raise errors of several kinds
        return False
    return True
