"""What a config may leave out: the head counts and switches each config class takes by default."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from attngeo.weights.layout.config_scope import DECLARED
from attngeo.weights.layout.norms import SWITCHES
from tools.proof.tiny import sub_configs

_KEYS = (*DECLARED, *SWITCHES, "multi_query", "new_decoder_architecture", "qk_nope_head_dim", "qk_rope_head_dim")


def defaults(config: PreTrainedConfig) -> dict[str, Any]:
    """The keys attngeo reads, under the names config.json uses, with the class's default values; sub-configs nested."""
    stored = config.to_dict()
    found: dict[str, Any] = {key: stored[key] for key in _KEYS if stored.get(key) is not None}
    for name, sub in sub_configs(config).items():
        if inner := defaults(sub):
            found[name] = {"model_type": sub.model_type, **inner}
    return found
