"""The queries and keys of a live model as views: what is written into them is written into its parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attngeo.errors import InputError, LayoutError
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.sites import Heads, Site


@dataclass(frozen=True)
class Projection:
    """One self-attention layer of a live model; m query heads share a key head, and g counts the key heads."""

    stack: str
    layer: int
    query: torch.Tensor  # [*g, m, r, d], a view into the parameter
    key: torch.Tensor  # [*g, r, d], likewise
    site: Site

    @property
    def width(self) -> int:
        return int(self.key.shape[-1])

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.site.query, self.site.key)))

    @property
    def where(self) -> str:
        return f"{self.stack} layer {self.layer} ({self.site.path})"


@dataclass(frozen=True)
class Live:
    """The self-attention of a live model, the parameters by name, and what is left alone."""

    parameters: dict[str, torch.Tensor]
    projections: tuple[Projection, ...]
    cross: tuple[str, ...]  # paths of cross-attention layers


def live(
    model: Any,
    *,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
) -> Live:
    """Place the queries and keys of `model` through the layout knowledge of scoring; options as in `score`."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__}: a torch module expected, whose weights can be written")
    whole = LiveCheckpoint(model)
    if whole.sharded:
        raise LayoutError(f"{whole.ref}: its weights are sharded; a start belongs before that")
    with open_layers(whole, num_heads=num_heads, stack=stack, layers=layers, unproven=unproven) as source:
        plans = source.plans
    parameters = whole.plain
    found: dict[tuple[int, int], Projection] = {}
    cross = []
    for plan in plans:
        if plan.site.cross:
            cross.append(plan.site.path)
            continue
        query, key = views(plan.site, parameters)
        # Shared layers (one tensor under several names) are written once.
        found.setdefault((query.data_ptr(), key.data_ptr()), Projection(plan.stack, plan.layer, query, key, plan.site))
    if not found:
        raise LayoutError(f"{whole.ref}: only cross-attention among the layers asked for, which starts leave alone")
    return Live(parameters, tuple(found.values()), tuple(cross))


def views(site: Site, parameters: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [*g, m, r, d] and keys [*g, r, d] of one layer, as views into its parameters."""
    kind, heads = site.storage.kind, site.heads
    if kind == "latent":
        raise LayoutError(
            f"{site.path}: latent attention, its queries and keys are products of projections; no start by copying"
        )
    query, key = (rows(site, name, parameters) for name in (site.query, site.key))  # [out, d]
    if heads is None:
        heads = _one_head(site, query, key)
    shared = heads.queries // heads.keys
    if kind == "heads":
        cells = query.unflatten(0, (heads.keys, shared + 2, heads.size))  # [G, m + 2, r, d]
        return cells[:, :-2], cells[:, -2]
    if kind == "codegen":
        cells = query.unflatten(0, (4, 3, heads.queries // 4, heads.size))  # [4, (q, v, k), H/4, r, d]
        return cells[:, 0].unsqueeze(2), cells[:, 2]
    width, key_width = heads.queries * heads.size, heads.keys * heads.size
    if kind == "blocks":
        query, key = query[:width], query[width : width + key_width]
    elif kind == "key-value":
        key = key[:key_width]
    elif kind != "separate":
        raise LayoutError(f"{site.path}: no way to write into storage of kind {kind}")
    if site.gated:
        query = query.unflatten(0, (heads.queries, 2, heads.size))[:, 0]  # [H, r, d]
        query = query.unflatten(0, (heads.keys, shared))
    else:
        query = query.unflatten(0, (heads.keys, shared, heads.size))
    return query, key.unflatten(0, (heads.keys, heads.size))


def rows(site: Site, name: str, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    """A parameter as [out, in], however it is stored."""
    value = parameters.get(name)
    if value is None or not value.is_floating_point():
        found = "is adapted, or not a parameter of its own" if value is None else f"holds {value.dtype}"
        raise LayoutError(f"{name}: {found}, a plain float parameter expected")
    if value.is_meta:
        raise LayoutError(f"{name}: on the meta device, without values yet")
    if value.is_inference():
        raise LayoutError(f"{name}: made in inference mode, it cannot be written")
    value = value.view(value.shape[0], -1)
    return value.T if site.storage.transposed else value


def need_heads(projections: Sequence[Projection], start: str, grouped: bool = True) -> None:
    """Raise where a start needs to know the heads, or one key head for each query head."""
    for one in projections:
        if one.site.heads is None:
            raise LayoutError(f"{one.where}: the {start} start needs the head count (num_heads)")
        if not grouped and one.query.shape[-3] != 1:
            raise LayoutError(f"{one.where}: {one.query.shape[-3]} query heads share a key head; the {start} start "
                              "sets each head's form by itself and cannot")  # fmt: skip


def _one_head(site: Site, query: torch.Tensor, key: torch.Tensor) -> Heads:
    """Without a head count the layer is one head: a copy is right however it is cut."""
    if site.storage.kind == "blocks" and len(query) % 3 == 0:
        return Heads(1, 1, len(query) // 3)
    if site.storage.kind == "separate" and query.shape == key.shape:
        return Heads(1, 1, len(query))
    raise LayoutError(f"{site.path}: the head count is needed (num_heads)")
