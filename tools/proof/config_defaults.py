"""The values that a config.json may leave out: head counts and switches with the default of their config class."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from attngeo.weights.layout.config_scope import DECLARED
from attngeo.weights.layout.norms import SWITCHES
from tools.proof.tiny_config import sub_configs

_KEYS = (*DECLARED, *SWITCHES, "multi_query", "new_decoder_architecture", "qk_nope_head_dim", "qk_rope_head_dim")


def config_defaults(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the keys that attngeo reads, as config.json spells them, with their values; sub-configs are nested.

    config: an instance made with the defaults of its class
    """
    stored = config.to_dict()
    defaults: dict[str, Any] = {key: stored[key] for key in _KEYS if stored.get(key) is not None}
    for name, sub_config in sub_configs(config).items():
        if inner := config_defaults(sub_config):
            defaults[name] = {"model_type": sub_config.model_type, **inner}
    return defaults
