"""What is particular to diffusers models: their tensor names, head counts and stacks.

`DIFFUSERS_TABLE`   rows of the table of layouts that hold for diffusers models only
`declared_heads`    the head count that the config of a diffusers model declares
`is_cross`          whether the queries and keys of a layer read different sequences
`group_stacks`      "self", "cross", "temporal"; "image" and "text" where two streams share one attention
"""

from attngeo.weights.layout.diffusers.cross import is_cross
from attngeo.weights.layout.diffusers.heads import declared_heads
from attngeo.weights.layout.diffusers.stacks import group_stacks
from attngeo.weights.layout.diffusers.table import DIFFUSERS_TABLE

__all__ = ["DIFFUSERS_TABLE", "declared_heads", "group_stacks", "is_cross"]
