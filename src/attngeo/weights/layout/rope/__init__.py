"""Rotary position embedding: from the config of a layer to its rotary pairs.

`rotary_of_sites`  what rotates in each layer of a model; a config that contradicts itself gives a warning
`find_rotary`      what rotates in the heads of a layer, by the facts about its model type
`make_pairs`       the rotary pairs that one rule gives
`rope_settings`    base, share and scaling of a layer, in the spelling of any year
`frequencies`      the frequencies of each scaling type
`layer_kind`       the kind of a layer, where kinds rotate differently
`RopeConfigError`  a config contradicts itself about rotary embedding
"""

from attngeo.weights.layout.rope.frequencies import frequencies
from attngeo.weights.layout.rope.layer_kinds import layer_kind
from attngeo.weights.layout.rope.rules import find_rotary, make_pairs, rotary_of_sites
from attngeo.weights.layout.rope.settings import RopeConfigError, RopeSettings, rope_settings

__all__ = [
    "RopeConfigError",
    "RopeSettings",
    "find_rotary",
    "frequencies",
    "layer_kind",
    "make_pairs",
    "rope_settings",
    "rotary_of_sites",
]
