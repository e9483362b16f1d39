"""The values that a config.json may leave out: head counts and switches with the default of their config class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from attngeo.weights.layout.facts import DECLARED
from attngeo.weights.layout.find import SWITCHES
from attngeo.weights.layout.rope import BASES, SHARES, WINDOWS
from attngeo.weights.layout.rope import SWITCHES as ROTARY_SWITCHES
from tools.proof.tiny_config import sub_configs

SIZES = ("rotary_dim", "rotary_ndims", "qk_rope_head_dim")  # of the part of a head that rotates
_ROTARY = (*BASES, *SHARES, *SIZES, "rope_parameters", "original_max_position_embeddings")
_KEYS = (*DECLARED, *SWITCHES, *_ROTARY, *WINDOWS, "multi_query", "new_decoder_architecture", "qk_nope_head_dim")
_PER_LAYER = ("layer_types", "layers_block_type", "no_rope_layers")  # stored as one period


def config_defaults(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the keys that attngeo reads, as config.json spells them, with their values; sub-configs are nested.

    config: an instance made with the defaults of its class
    """
    stored = config.to_dict()
    defaults: dict[str, Any] = {key: stored[key] for key in _KEYS if stored.get(key) is not None}
    defaults |= {key: stored[key] for key in ROTARY_SWITCHES if key in stored}  # also where the default is null
    for key in _PER_LAYER:
        if isinstance(stored.get(key), list) and stored[key]:
            defaults[key] = shortest_period(stored[key])
    for name, sub_config in sub_configs(config).items():
        if inner := config_defaults(sub_config):
            defaults[name] = {"model_type": sub_config.model_type, **inner}
    return defaults


def shortest_period(kinds: Sequence[Any]) -> list[Any]:
    """Return the shortest beginning of `kinds` that, repeated, gives all of them.

    >>> shortest_period(["a", "a", "b", "a", "a", "b", "a"])
    ['a', 'a', 'b']
    """
    for length in range(1, len(kinds)):
        if all(kind == kinds[i % length] for i, kind in enumerate(kinds)):
            return list(kinds[:length])
    return list(kinds)
