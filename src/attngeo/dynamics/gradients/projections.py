"""Where the queries and keys of a live model's self-attention are made, and what makes each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.errors import AttngeoError, InputError
from attngeo.live.attention_modules import Attention, Stack, kind_of
from attngeo.weights.layout.families import ends_with, family
from attngeo.weights.layout.sites import Site, count_heads


@dataclass(frozen=True, eq=False)
class Place:
    """One self-attention module: where it stands, and what makes its queries and keys."""

    weights: tuple[Any, ...]  # known by these; modules that share them are one layer, used several times
    stack: str
    layer: int
    site: Site
    projections: Mapping[str, Any]  # tensor → the module that multiplies token vectors with it
    missing: str  # why the weights' own gradients cannot be given; "" where they can

    @property
    def inputs(self) -> tuple[str, str]:
        """The tensors that meet the token vectors: on the query side, on the key side."""
        return _inputs(self.site)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Query and key, once where they are one tensor."""
        return tuple(dict.fromkeys((self.site.query, self.site.key)))


def places(
    model: Any, stacks: Iterable[Stack], layers: frozenset[int] | None
) -> tuple[tuple[Attention, ...], dict[int, Place]]:
    """The self-attention modules to hear, and by their id what they are."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    owned = {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)}
    found: dict[int, Place] = {}
    heard = []
    for stack in stacks:
        for one in stack.attentions:
            if one.site.cross or (layers is not None and one.layer not in layers):
                continue
            own = owned.get(one.site.query, one.path), owned.get(one.site.key, one.path)
            found[id(one.module)] = _place(model, own, stack, one, shapes)
            heard.append(one)
    if not heard:
        known = [one.layer for stack in stacks for one in stack.attentions if not one.site.cross]
        if not known:
            raise InputError(f"{kind_of(model)}: no self-attention that can be heard")
        raise InputError(
            f"{kind_of(model)}: none of the layers asked for exist; they run from {min(known)} to {max(known)}"
        )
    return tuple(heard), found


def _place(
    model: Any, own: tuple[Any, ...], stack: Stack, one: Attention, shapes: Mapping[str, tuple[int, ...]]
) -> Place:
    site, missing = one.site, ""
    kind = str(getattr(model.config, "model_type", ""))
    known = family(kind)
    if not site.query:
        return Place(own, stack.name, one.layer, site, {}, f"{one.path}: where its queries and keys lie is not known")
    if known.status != "right" or any(ends_with(site.template, skip) for skip in known.skip):
        missing = f"{site.path}: the layout of {kind_of(model)} was never checked against a live model"
    elif site.storage.kind == "latent":
        missing = f"{site.path}: latent attention, its queries and keys are products of several projections"
    try:
        site = count_heads(site, shapes, None)
    except AttngeoError as error:
        missing = str(error)
    if site.heads is None and not missing:
        missing = f"{site.path}: the head count is not known"
    names = dict.fromkeys((*_inputs(site), site.query, site.key))
    modules = {name: module for name in names if (module := _module(model, name)) is not None}
    if len(modules) < len(names) and not missing:
        missing = f"{site.query}: not the weight of a module of its own"
    return Place(own, stack.name, one.layer, site, modules, missing)


def _inputs(site: Site) -> tuple[str, str]:
    return site.more.get("query_down", site.query), site.more.get("key_down", site.key)


def _module(model: Any, tensor: str) -> Any:
    """The module whose `weight` this is, None where it is something else."""
    path, _, leaf = tensor.rpartition(".")
    try:
        return model.get_submodule(path) if leaf == "weight" and path else None
    except AttributeError:
        return None
