"""Attention layers of a checkpoint that are not scored, and why: the others are only a part of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.io.names import first_names
from attngeo.weights.layout.diffusers.table import FROM_SECOND, TO_SECOND
from attngeo.weights.layout.families import ends_with
from attngeo.weights.layout.site import Location, Site, join_path, path_template
from attngeo.weights.layout.storage.base import Shapes
from attngeo.weights.layout.table import NOT_ATTENTION, TABLE

_SHOWN = 4  # paths in a note
_OTHER_KEYS = "they read the keys of another layer"
# Names of modules that project queries: "q_proj", "to_q", "wqkv", "query_key_value", "wq_du", "sa_qcontent_proj"; not
# "query_embed" or "query_feat", which hold learned queries.
_QUERIES = re.compile(r"(?:^|_)w?q(?:kv|content)?(?:_|$)|^query(?!.*(?:embed|feat))(?:_|$)", re.IGNORECASE)
# Parts of a model that predict further tokens: "mtp.layers.0", "model.mtp_layers.0", ERNIE 4.5's "model.mtp_block.0".
_FURTHER_TOKENS = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")

Incomplete: TypeAlias = list[tuple[Location, list[str]]]  # layers, and the tensors that each lacks


def is_unused(site: Site) -> bool:
    """Return whether the checkpoint holds key weights of a layer that the model does not run with them.

    In Gemma 3n and Gemma 4 the last layers read the keys of an earlier one. Layers that predict further tokens while
    the model is trained (multi-token prediction) are stored behind the last layer by DeepSeek-V3 and GLM-4.5, and under
    names of their own by Qwen 3.5, EXAONE 4.5, Nemotron-H and others.
    """
    if site.scope is None or not site.indices:  # a model of the reader's own, which may run all of its layers
        return False
    if _FURTHER_TOKENS.search(site.path) or _reads_other_keys(site):
        return True
    depth, further = (_count(site, key) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    return further > 0 and site.indices[-1] >= depth > 0


def left_out(
    shapes: Shapes, scored: Iterable[Site], skipped: Iterable[Site], unused: Iterable[Site], ref: str
) -> tuple[str, ...]:
    """Return one remark per reason for which layers are left out; none where all layers are scored.

    scored:  the layers that are scored; LayoutError where a layer of their stacks lacks tensors
    skipped: layers of a known layout that no live model of this type confirmed
    unused:  layers that the model does not run with these weights
    """
    scored, skipped, unused = list(scored), list(skipped), list(unused)
    sites = [*scored, *skipped, *unused]
    incomplete = incomplete_layers(shapes, sites)
    _check_complete(incomplete, scored, ref)
    known = {site.path for site in sites} | {layer.path for layer, _ in incomplete}
    remarks = {
        _OTHER_KEYS: _paths_without_keys(incomplete),
        "no live model of this type confirmed them": [site.template for site in skipped],
        "the model does not run them with these weights": [site.path for site in unused],
        "their layout is unknown": unknown_layers(shapes, known),
    }
    return _remarks(remarks)


def left_out_of_stacks(shapes: Shapes, scored: Sequence[Site], ref: str) -> tuple[str, ...]:
    """Return the remarks of `left_out` about the stacks of the layers `scored`, which a user has selected.

    Such a user knows that they are a part of the model, but not that layers of these stacks are left out.
    """
    incomplete = incomplete_layers(shapes, scored)
    _check_complete(incomplete, scored, ref)
    return _remarks({_OTHER_KEYS: _paths_without_keys(incomplete)})


def incomplete_layers(shapes: Shapes, sites: Iterable[Site]) -> Incomplete:
    """Return the layers that have queries or keys, but not all tensors of their stack, and what they lack.

    What a layer has to have is known from the other layers of its stack, `sites`. A layer with neither queries nor keys
    may be one without attention, such as those of hybrid models.
    """
    sites = list(sites)
    known = {site.path for site in sites}
    stacks: dict[tuple[str, str], Site] = {}  # (leaf of queries or keys, template) → one layer of the stack
    for site in sites:
        if site.layout.suffix not in (TO_SECOND, FROM_SECOND):  # these are made of the tensors of two other layers
            for leaf in (site.layout.query, site.layout.key):
                stacks.setdefault((leaf, site.template), site)
    incomplete: Incomplete = []
    for name in shapes:
        for (leaf, template), site in stacks.items():
            if not ends_with(name, leaf):
                continue
            start = name.removesuffix(leaf).rstrip(".")
            path = join_path(start, site.layout.suffix)
            if path in known or path_template(path) != template:
                continue
            known.add(path)
            if _is_linear(start, leaf, shapes):
                continue
            leaves = (site.layout.query, site.layout.key, *site.layout.others.values())
            if missing := [other for other in leaves if join_path(start, other) not in shapes]:
                incomplete.append((Location(path, site.cross, site.scope), missing))
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


def _check_complete(incomplete: Incomplete, scored: Sequence[Site], ref: str) -> None:
    """Raise LayoutError for a layer that lacks tensors which the scored layers of its stack have."""
    templates = {site.template for site in scored}
    for layer, missing in incomplete:
        if layer.template in templates and not _reads_other_keys(layer):
            lacks = f"{layer.path} lacks {', '.join(missing)}"
            raise LayoutError(f"{ref}: {lacks}, which other layers of its stack have")


def _paths_without_keys(incomplete: Incomplete) -> list[str]:
    return [layer.path for layer, _ in incomplete if _reads_other_keys(layer)]


def _reads_other_keys(layer: Location) -> bool:
    """Return whether a layer is among the last ones, which share the keys of earlier layers."""
    depth, shared = (_count(layer, key) for key in ("num_hidden_layers", "num_kv_shared_layers"))
    return bool(layer.indices) and shared > 0 and layer.indices[-1] >= depth - shared > 0


def _count(layer: Location, key: str) -> int:
    """Return a number of layers that the config declares; 0 where it declares none."""
    value = None if layer.scope is None else layer.scope.get(key)
    return int(value) if value is not None and is_whole(value, lowest=1) else 0


def _is_within(path: str, known: set[str]) -> bool:
    """Return whether one of the known layers is at `path` or around it."""
    words = path.split(".")
    return any(".".join(words[:count]) in known for count in range(len(words) + 1))


def _is_linear(module: str, leaf: str, shapes: Shapes) -> bool:
    """Return whether a module with queries at `leaf` is linear attention, which has no product of queries and keys."""
    return any(
        layout.storage is None and layout.query == leaf and join_path(module, layout.key) in shapes for layout in TABLE
    )


def _remarks(reasons: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a remark for each reason that has names of layers."""
    return tuple(
        f"layers are left out, because {reason}: {first_names(list(dict.fromkeys(names)), _SHOWN)}"
        for reason, names in reasons.items()
        if names
    )
