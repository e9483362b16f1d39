"""What a pruned model says about itself in its config: which heads it kept, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.errors import InputError
from attngeo.weights.layout.heads import CONFIG_KEY

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Kept = Mapping[tuple[str, int], Sequence[int]]  # (stack, layer) → numbers of the query heads that are kept


def write_record(config: PreTrainedConfig, layers: Sequence[PrunableLayer], kept: Kept, facts: dict[str, Any]) -> None:
    """Write into `config` which heads of the full model's `layers` are kept, and further facts.

    `save_pretrained` puts it into config.json, where `load_pruned` and `attngeo.score` find it.
    """
    stacks: dict[str, Any] = {}
    for layer in layers:
        counts = {"heads": layer.heads.queries, "key_heads": layer.heads.keys, "head_size": layer.heads.size}
        stack = stacks.setdefault(layer.stack, {**counts, "kept": {}})
        stack["kept"][str(layer.layer)] = list(kept[layer.stack, layer.layer])
    setattr(config, CONFIG_KEY, {**facts, "stacks": stacks})


def read_record(config: PreTrainedConfig, name: str) -> dict[str, Any]:
    """Return the record in `config`; InputError where there is none. name: of the model, for the message"""
    record = getattr(config, CONFIG_KEY, None)
    if not isinstance(record, dict) or not isinstance(record.get("stacks"), dict):
        raise InputError(f"{name}: config.json has no {CONFIG_KEY}; expected a folder that a pruned model was saved to")
    return record


def recorded_heads(record: Mapping[str, Any]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the numbers of the heads that each (stack, layer) has kept, by a record."""
    try:
        return {
            (stack, int(layer)): tuple(numbers)
            for stack, described in record["stacks"].items()
            for layer, numbers in described["kept"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"config.json: {CONFIG_KEY} does not describe which heads are kept") from None
