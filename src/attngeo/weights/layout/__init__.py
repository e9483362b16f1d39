"""How model families store queries and keys: from the tensors of a checkpoint to the heads of its attention layers.

Reading layers
    `open_layers`, `attention_layers`   the attention layers of a checkpoint, one at a time
    `Layers`, `LayerPlan`               the layers of an open checkpoint; what has to be read of one of them
    `AttentionWeights`, `Norm`          queries and keys of one layer, and the norm before it
    `RotaryPairs`                       which dimensions of a head rotate with the position, and how fast
    `chosen_layers`                     the option `layers` as a set of numbers

Finding layers
    `TABLE`, `Layout`                   which tensor names hold queries and keys, and in which kind of storage
    `storage`                           one class per kind of storage: head counts, bytes to read, rows of each head
    `find_sites`, `Site`, `Location`    the attention layers that the table finds
    `count_heads`, `Heads`              head counts, settled from config and shapes
    `name_stacks`                       "encoder", "decoder", "vision", …, and layer numbers
    `scope_of`, `Scope`                 the part of a config that describes a layer
    `find_norm`, `NormLocation`         the norm before an attention layer
    `family`, `Family`                  facts about a model type, found by comparison with live models
"""

from attngeo.weights.layout.attention_weights import AttentionWeights, Norm
from attngeo.weights.layout.config_scope import Scope, scope_of
from attngeo.weights.layout.families import Family, family
from attngeo.weights.layout.head_counts import count_heads
from attngeo.weights.layout.layer_plan import LayerPlan
from attngeo.weights.layout.layers import Layers, attention_layers, chosen_layers, open_layers
from attngeo.weights.layout.preceding_norm import NormLocation, find_norm
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.layout.site import Location, Site
from attngeo.weights.layout.sites import find_sites
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.storage.base import Heads
from attngeo.weights.layout.table import TABLE, Layout

__all__ = [
    "TABLE",
    "AttentionWeights",
    "Family",
    "Heads",
    "LayerPlan",
    "Layers",
    "Layout",
    "Location",
    "Norm",
    "NormLocation",
    "RotaryPairs",
    "Scope",
    "Site",
    "attention_layers",
    "chosen_layers",
    "count_heads",
    "family",
    "find_norm",
    "find_sites",
    "name_stacks",
    "open_layers",
    "scope_of",
]
