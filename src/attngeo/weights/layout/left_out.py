"""Attention layers of a checkpoint that are not scored, and why: the others are only a part of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.io.names import first_names
from attngeo.weights.layout.families import ends_with
from attngeo.weights.layout.layer import Layer, join_path, path_template
from attngeo.weights.layout.storage import Shapes
from attngeo.weights.layout.table import FROM_SECOND, NOT_ATTENTION, TABLE, TO_SECOND, Layout

_SHOWN = 4  # paths in a note
# Names of modules that project queries: "q_proj", "to_q", "wqkv", "query_key_value", "wq_du", "sa_qcontent_proj"; not
# "query_embed" or "query_feat", which hold learned queries.
_QUERIES = re.compile(r"(?:^|_)w?q(?:kv|content)?(?:_|$)|^query(?!.*(?:embed|feat))(?:_|$)", re.IGNORECASE)
# Parts of a model that predict further tokens: "mtp.layers.0", "model.mtp_layers.0", ERNIE 4.5's "model.mtp_block.0".
_FURTHER_TOKENS = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")

Incomplete: TypeAlias = list[tuple[Layer, list[str]]]  # layers, and the tensors that each lacks


def is_unused(layer: Layer) -> bool:
    """Return whether the checkpoint holds key weights of a layer that the model does not run with them.

    In Gemma 3n and Gemma 4 the last layers read the keys of an earlier one. Layers that predict further tokens while
    the model is trained (multi-token prediction) are stored behind the last layer by DeepSeek-V3 and GLM-4.5, and under
    names of their own by Qwen 3.5, EXAONE 4.5, Nemotron-H and others.
    """
    if layer.scope is None or not layer.indices:  # a model of the reader's own, which may run all of its layers
        return False
    if _FURTHER_TOKENS.search(layer.path) or _reads_other_keys(layer):
        return True
    depth, further = (_count(layer, key) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    return further > 0 and layer.indices[-1] >= depth > 0


def left_out(
    shapes: Shapes, scored: Sequence[Layer], skipped: Sequence[Layer], unused: Sequence[Layer], ref: str, *, whole: bool
) -> tuple[str, ...]:
    """Return one remark per reason for which layers are left out; none where all layers are scored.

    scored:  the layers that are scored; LayoutError where a layer of their stacks lacks tensors
    skipped: layers of a known layout that no live model of this type confirmed
    unused:  layers that the model does not run with these weights
    whole:   False: a user has selected the stacks of `scored`, and knows that they are a part of the model, but not
             that layers of these stacks are left out
    """
    layers = [*scored, *skipped, *unused] if whole else list(scored)
    incomplete = incomplete_layers(shapes, layers)
    templates = {layer.template for layer in scored}
    for layer, missing in incomplete:
        if layer.template in templates and not _reads_other_keys(layer):
            lacks = f"{layer.path} lacks {', '.join(missing)}"
            raise LayoutError(f"{ref}: {lacks}, which other layers of its stack have")
    reasons = {
        "they read the keys of another layer": [layer.path for layer, _ in incomplete if _reads_other_keys(layer)]
    }
    if whole:
        known = {layer.path for layer in layers} | {layer.path for layer, _ in incomplete}
        reasons |= {
            "no live model of this type confirmed them": [layer.template for layer in skipped],
            "the model does not run them with these weights": [layer.path for layer in unused],
            "their layout is unknown": unknown_layers(shapes, known),
        }
    return tuple(
        f"layers are left out, because {reason}: {first_names(list(dict.fromkeys(names)), _SHOWN)}"
        for reason, names in reasons.items()
        if names
    )


def incomplete_layers(shapes: Shapes, layers: Iterable[Layer]) -> Incomplete:
    """Return the layers that have queries or keys, but not all tensors of their stack, and what they lack.

    What a layer has to have is known from the other layers of its stack, `layers`. A layer with neither queries nor
    keys may be one without attention, such as those of hybrid models.
    """
    layers = list(layers)
    known = {layer.path for layer in layers}
    stacks: dict[tuple[str, str], tuple[Layer, Layout]] = {}  # (leaf of queries or keys, template) → one of the stack
    for layer in layers:
        # Forms between two streams are made of the tensors of two other layers.
        if layer.row is not None and layer.row.suffix not in (TO_SECOND, FROM_SECOND):
            for leaf in (layer.row.query, layer.row.key):
                stacks.setdefault((leaf, layer.template), (layer, layer.row))
    incomplete: Incomplete = []
    for name in shapes:
        for (leaf, template), (layer, row) in stacks.items():
            if not ends_with(name, leaf):
                continue
            start = name.removesuffix(leaf).rstrip(".")
            path = join_path(start, row.suffix)
            if path in known or path_template(path) != template:
                continue
            known.add(path)
            if _is_linear(start, leaf, shapes):
                continue
            leaves = (row.query, row.key, *row.others.values())
            if missing := [other for other in leaves if join_path(start, other) not in shapes]:
                incomplete.append((replace(layer, path=path), missing))
    return incomplete


def unknown_layers(shapes: Shapes, known: set[str]) -> list[str]:
    """Return the templates of query projections, by their names, that belong to no layer in `known`.

    >>> unknown_layers({"layers.0.q_proj.weight": (8, 8), "tower.1.wqkv.weight": (24, 8)}, {"layers.0"})
    ['tower.*.wqkv']
    """
    templates: dict[str, None] = {}
    for name, shape in shapes.items():
        path, _, leaf = name.rpartition(".")
        module, _, projection = path.rpartition(".")
        if leaf != "weight" or len(shape) != 2 or not _QUERIES.search(projection):
            continue
        if NOT_ATTENTION.search(path) or _is_linear(module, f"{projection}.weight", shapes) or _is_within(path, known):
            continue
        templates[path_template(path)] = None
    return list(templates)


def _reads_other_keys(layer: Layer) -> bool:
    """Return whether a layer is among the last ones, which share the keys of earlier layers."""
    depth, shared = (_count(layer, key) for key in ("num_hidden_layers", "num_kv_shared_layers"))
    return bool(layer.indices) and shared > 0 and layer.indices[-1] >= depth - shared > 0


def _count(layer: Layer, key: str) -> int:
    """Return a number of layers that the config declares; 0 where it declares none."""
    value = None if layer.scope is None else layer.scope.get(key)
    return int(value) if value is not None and is_whole(value, lowest=1) else 0


def _is_within(path: str, known: set[str]) -> bool:
    """Return whether one of the known layers is at `path` or around it."""
    words = path.split(".")
    return any(".".join(words[:count]) in known for count in range(len(words) + 1))


def _is_linear(module: str, leaf: str, shapes: Shapes) -> bool:
    """Return whether a module with queries at `leaf` is linear attention, which has no product of queries and keys."""
    return any(row.storage is None and row.query == leaf and join_path(module, row.key) in shapes for row in TABLE)
