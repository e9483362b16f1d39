"""Count the heads of a layer: the config declares how many there are, the shapes say how large they are.

A model that `attngeo.prune` made states the heads that its layers still have:

    "attngeo_pruned": {"stacks": {"decoder": {"heads": 9, "key_heads": 3, "head_size": 64, "kept": {"0": [0, 3, 6]}}}}

A stack states the head counts of the full model, and the numbers of the query heads that each layer has kept. The key
heads that a layer has kept are read by equally many of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.weights.layout import diffusers
from attngeo.weights.layout.facts import query_heads, width
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.storage import DeclaredHeads, Heads, Shapes

CONFIG_KEY = "attngeo_pruned"


def count_heads(
    layer: Layer, shapes: Shapes, num_heads: int | None = None, config: Mapping[str, Any] | None = None
) -> Layer:
    """Return `layer` with its heads counted; heads stay None where neither the config nor `num_heads` gives a count.

    config: of the model, which states the heads of a pruned layer

    Raises LayoutError where the config and the shapes contradict each other.
    """
    if (pruned := pruned_heads(config, layer.stack, layer.layer)) is not None:
        for name, expected in layer.storage.expected_rows(pruned).items():
            rows, _ = layer.storage.matrix_shape(name, shapes)
            if rows != expected:
                raise LayoutError(f"{name}: {rows} rows, but the config declares heads that need {expected}")
        return replace(layer, heads=pruned)
    declared = declared_heads(layer, shapes, num_heads)
    heads = None if declared is None else layer.storage.count_heads(shapes, declared)
    return replace(layer, heads=heads, heads_known=heads is not None)


def declared_heads(layer: Layer, shapes: Shapes, num_heads: int | None) -> DeclaredHeads | None:
    """Return what the config declares about the heads of `layer`, or else the option `num_heads`."""
    scope = layer.scope
    special = diffusers.declared_heads(layer, shapes) if layer.facts.heads else None
    if special is not None:
        _check_same(num_heads, special.queries, special.source, layer)
        return special
    stated = query_heads(scope, layer.path, layer.cross) if scope is not None else None
    if stated is None:
        return None if num_heads is None else DeclaredHeads("num_heads", num_heads, scope, layer.cross)
    key, count = stated
    if isinstance(count, (list, tuple)):  # one entry per layer or stage
        index = layer.indices[0] if layer.indices else 0
        if index >= len(count):
            raise LayoutError(f"config.json: {key} has {len(count)} entries, but {layer.path} needs entry {index}")
        count = count[index]
    if not is_whole(count, lowest=1):
        raise LayoutError(f"config.json: {key} is {count!r}, expected a positive whole number of heads")
    _check_same(num_heads, count, key, layer)
    return DeclaredHeads(key, count, scope, layer.cross)


def _check_same(num_heads: int | None, declared: int, key: str, layer: Layer) -> None:
    """Raise LayoutError where the option contradicts the config."""
    if num_heads not in (None, declared):
        raise LayoutError(
            f"num_heads is {num_heads}, but the config declares {declared} heads ({key}) for {layer.path}; "
            "leave num_heads (--num-heads) out"
        )


def check_width(layer: Layer, shapes: Shapes) -> None:
    """Raise LayoutError where the queries read vectors of another width than the config declares.

    Only for model types whose layers all have the declared width (`Family.width`).
    """
    if not layer.facts.width or layer.scope is None or layer.cross:
        return
    declared, found = width(layer.scope), layer.storage.widths(shapes)[0]
    if declared is not None and declared[1] != found:
        raise LayoutError(f"{layer.storage.query}: reads vectors of width {found}, but {declared[0]} is {declared[1]}")


def pruned_heads(config: Mapping[str, Any] | None, stack: str, layer: int) -> Heads | None:
    """Return the heads of one layer of a pruned model; None where the config says nothing about the layer.

    >>> stacks = {"decoder": {"heads": 9, "key_heads": 3, "head_size": 64, "kept": {"0": [0, 2, 3, 5]}}}
    >>> heads = pruned_heads({"attngeo_pruned": {"stacks": stacks}}, "decoder", 0)
    >>> heads.queries, heads.keys, heads.numbers
    (4, 2, (0, 2, 3, 5))
    """
    if config is None or config.get(CONFIG_KEY) is None:
        return None
    described = config[CONFIG_KEY]["stacks"].get(stack, {"kept": {}})
    kept = described["kept"].get(str(layer))
    if kept is None:
        return None
    group = described["heads"] // described["key_heads"]
    keys = {head // group for head in kept}
    return Heads(len(kept), len(keys), described["head_size"], numbers=tuple(kept), full_group=group)
