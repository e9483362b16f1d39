"""Tell self-attention and cross-attention of diffusers models apart."""

from __future__ import annotations

import re

from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.layout.diffusers.blocks import of_block
from attngeo.weights.layout.diffusers.table import FROM_SECOND, TO_SECOND
from attngeo.weights.layout.families import ends_with, family
from attngeo.weights.layout.site import path_template

_FIRST = re.compile(r"\.attn1$")
_SECOND = re.compile(r"\.attn2$")


def is_cross(path: str, scope: Scope) -> bool | None:
    """Return whether the layer at `path` is cross-attention; None: the names and shapes of its tensors decide.

    The layers that are cross-attention in a live model of the class are known (`Family.cross`). Two switches of a
    config change that: `only_cross_attention` and `double_self_attention`.
    """
    if path.endswith((f".{TO_SECOND}", f".{FROM_SECOND}")):
        return True
    known = family(str(scope.get("model_type", "")))
    if _FIRST.search(path) and of_block(scope.get("only_cross_attention", False), path):
        return True
    if _SECOND.search(path) and scope.config.get("double_self_attention") is True:
        return False
    if known.cross is None:
        return True if _SECOND.search(path) else None
    template = path_template(path)
    return any(ends_with(template, ending) for ending in known.cross)
