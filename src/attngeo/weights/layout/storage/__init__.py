"""How the heads of one layer lie in its tensors: one class per kind of storage.

`Separate`   query [H·r, d] and key [G·r, d]
`KeyValue`   query [H·r, d], and one tensor with rows [keys | values]
`Blocks`     one tensor with rows [queries | keys | values]
`PerHead`    one tensor with rows [G, (H/G queries, key, value), r]
`CodeGen`    one tensor with rows [4, (queries, values, keys), H/4, r]
`Latent`     down- and up-projections with a norm between them (multi-head latent attention)

All extend `Storage`, which says what a class has to offer; `Fused` is the base of the classes with one tensor. `Heads`
and `DeclaredHeads` are head counts, `ValueRows` says where the values are, `Shapes` maps tensor names to shapes.
"""

from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes, Storage, ValueRows
from attngeo.weights.layout.storage.fused import Blocks, CodeGen, Fused, PerHead
from attngeo.weights.layout.storage.key_value import KeyValue
from attngeo.weights.layout.storage.latent import Latent
from attngeo.weights.layout.storage.separate import Separate

__all__ = [
    "Blocks",
    "CodeGen",
    "DeclaredHeads",
    "Fused",
    "Heads",
    "KeyValue",
    "Latent",
    "PerHead",
    "Separate",
    "Shapes",
    "Storage",
    "ValueRows",
]
