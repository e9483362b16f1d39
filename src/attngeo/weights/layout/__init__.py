"""How model families store queries and keys: from the tensors of a checkpoint to the heads of its attention layers.

Reading layers
    layers           `open_layers`, `attention_layers`: the layers of a checkpoint, one at a time
    layer            `Layer`: one attention layer; where it is, how its heads are stored, its queries and keys
    rotary           `RotaryPairs`: which dimensions of a head rotate with the position, and how fast

Finding layers
    table            which tensor names hold queries and keys, and in which kind of storage
    find             the layers of a model whose tensors have such names, their norms, and the layers that are left out
    storage          one class per kind of storage: head counts, bytes to read, rows of each head
    facts            facts about model types, found by comparison with live models; the part of a config for a layer
    heads            head counts, settled from config and shapes
    stacks           "encoder", "decoder", "vision", …, and layer numbers
    diffusers        what is particular to models of diffusers
    rope             the rotary pairs of a layer, from its config
"""

from attngeo.weights.layout.layer import Layer, Norm
from attngeo.weights.layout.layers import Layers, attention_layers, open_layers
from attngeo.weights.layout.rotary import RotaryPairs

__all__ = ["Layer", "Layers", "Norm", "RotaryPairs", "attention_layers", "open_layers"]
