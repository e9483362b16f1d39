"""Settle the head counts of a site: the config declares how many heads there are, the shapes how large they are."""

from __future__ import annotations

from dataclasses import replace

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.weights.layout import diffusers
from attngeo.weights.layout.config_scope import query_heads, width
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.storage.base import DeclaredHeads, Heads, Shapes
from attngeo.weights.layout.table import GATED_TYPES


def count_heads(site: Site, shapes: Shapes, num_heads: int | None, pruned: Heads | None = None) -> Site:
    """Return `site` with its heads counted; heads stay None where neither the config nor `num_heads` gives a count.

    pruned: the heads that a pruned layer has, by the config's own record of them

    Raises LayoutError where the config and the shapes contradict each other.
    """
    if pruned is not None:
        site.storage.check_rows(shapes, pruned)
        return replace(site, heads=pruned)
    return replace(site, heads=site.storage.count_heads(shapes, declared_heads(site, shapes, num_heads)))


def declared_heads(site: Site, shapes: Shapes, num_heads: int | None) -> DeclaredHeads | None:
    """Return what the config declares about the heads of `site`, or else the option `num_heads`."""
    gated_type = site.scope is not None and bool(GATED_TYPES.search(str(site.scope.config.get("model_type"))))
    if site.scope is not None and "_class_name" in site.scope.config:
        special = diffusers.declared_heads(site, shapes)
        if special is not None:
            _check_same(num_heads, special.queries, special.source, site)
            return special
    declared = query_heads(site.scope, site.path, site.cross) if site.scope is not None else None
    if declared is None:
        if num_heads is None:
            return None
        return DeclaredHeads("num_heads", num_heads, site.scope, site.cross, gated_type)
    key, count = declared
    if isinstance(count, (list, tuple)):  # one entry per layer or stage
        index = site.indices[0] if site.indices else 0
        if index >= len(count):
            raise LayoutError(f"config.json: {key} has {len(count)} entries, but {site.path} needs entry {index}")
        count = count[index]
    if not is_whole(count, lowest=1):
        raise LayoutError(f"config.json: {key} is {count!r}, expected a positive whole number of heads")
    _check_same(num_heads, count, key, site)
    return DeclaredHeads(key, count, site.scope, site.cross, gated_type)


def _check_same(num_heads: int | None, declared: int, key: str, site: Site) -> None:
    """Raise LayoutError where the option contradicts the config."""
    if num_heads not in (None, declared):
        raise LayoutError(
            f"num_heads is {num_heads}, but the config declares {declared} heads ({key}) for {site.path}; "
            "leave num_heads (--num-heads) out"
        )


def check_width(site: Site, shapes: Shapes) -> None:
    """Raise LayoutError where the queries read vectors of another width than the config declares.

    Only for model types whose layers all have the declared width (`Family.width`).
    """
    declared = width(site.scope) if site.scope is not None and not site.cross else None
    if declared is not None and declared[1] != (found := query_width(site, shapes)):
        raise LayoutError(f"{site.query}: reads vectors of width {found}, but {declared[0]} is {declared[1]}")


def query_width(site: Site, shapes: Shapes) -> int:
    """Return the width d of the token vectors that the queries of `site` read."""
    return site.storage.matrix_shape(site.storage.inputs[0], shapes)[1]
