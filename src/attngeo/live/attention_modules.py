"""The attention modules of a live model that go through transformers' `AttentionInterface`, by stack and layer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.errors import InputError
from attngeo.weights.layout.config_scope import scope_of
from attngeo.weights.layout.families import ends_with, family
from attngeo.weights.layout.sites import Site, find_sites
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.table import CROSS, TABLE


@dataclass(frozen=True, eq=False)
class Attention:
    """One module that asks the interface how to attend, with the model's own plain way of doing so."""

    path: str
    module: Any
    eager: Callable[..., Any]
    layer: int
    site: Site  # where its tensors lie; without names of tensors where the layout table does not know it


@dataclass(frozen=True, eq=False)
class Stack:
    """The attention layers of one tower in the words of `attngeo.score`: "encoder", "decoder", "cross", "vision", …"""

    name: str
    attentions: tuple[Attention, ...]  # by layer
    deaf: tuple[int, ...]  # layers whose attention does not go through the interface

    @property
    def cross(self) -> bool:
        return self.name == "cross"

    def check_heard(self, kind: str, wanted: frozenset[int] | None) -> None:
        """InputError where one of the layers wanted, all of them for None, does not go through the interface."""
        deaf = [layer for layer in self.deaf if wanted is None or layer in wanted]
        if deaf:
            heard = ", ".join(str(one.layer) for one in self.attentions)
            raise InputError(
                f"{kind}: layer {deaf[0]} of its {self.name} does not go through AttentionInterface; "
                f"layers {heard} do, choose them with layers="
            )


def stacks_of(model: Any) -> dict[str, Stack]:
    """Every stack of which something can be captured; InputError, by name, where there is none."""
    heard = {path: (module, way) for path, module in model.named_modules() if (way := _plain_way(module)) is not None}
    kind = kind_of(model)
    if not heard:
        raise InputError(
            f"{kind}: attention does not go through transformers' AttentionInterface, nothing can be captured"
        )
    members: dict[str, list[Attention]] = {}
    deaf: dict[str, list[int]] = {}
    config = json.loads(model.config.to_json_string(use_diff=False))  # as a config.json would have it
    for stack, layer, site in name_stacks(_sites(model, config, heard), config):
        path = _owner(site.path, heard)
        if path is None:
            deaf.setdefault(stack, []).append(layer)
        else:
            members.setdefault(stack, []).append(Attention(path, *heard[path], layer, site))
    return {
        name: Stack(name, tuple(sorted(found, key=lambda one: one.layer)), tuple(deaf.get(name, ())))
        for name, found in members.items()
    }


def kind_of(model: Any) -> str:
    """ "model type t5", or the class where a config says nothing."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    return f"model type {kind}" if kind else type(model).__name__


def tower_for(model: Any, stack: Stack, given: Collection[str]) -> Any:
    """The smallest model around all of `stack` whose forward takes everything given; the whole model otherwise."""
    from transformers import PreTrainedModel

    best, most = model, -1
    for path, module in model.named_modules():
        inside = not path or all(one.path.startswith(f"{path}.") for one in stack.attentions)
        if inside and isinstance(module, PreTrainedModel) and set(given) <= set(parameters(module)):
            depth = path.count(".") + bool(path)
            if depth > most:
                best, most = module, depth
    return best


def parameters(model: Any) -> Iterable[str]:
    """Names of the arguments of a model's forward."""
    return inspect.signature(model.forward).parameters


def _plain_way(module: Any) -> Callable[..., Any] | None:
    """The eager function `module` would fall back on, where its forward asks the interface; else None.

    A forward that dispatches reads `ALL_ATTENTION_FUNCTIONS` and names its eager function as the default.
    """
    for kind in type(module).__mro__:
        forward = inspect.unwrap(kind.__dict__["forward"]) if callable(kind.__dict__.get("forward")) else None
        names = getattr(getattr(forward, "__code__", None), "co_names", ())
        if "ALL_ATTENTION_FUNCTIONS" in names:
            found = next((name for name in names if name.endswith("eager_attention_forward")), None)
            way: Callable[..., Any] | None = forward.__globals__.get(found)  # type: ignore[union-attr]
            return way
    return None


def _sites(model: Any, config: Mapping[str, Any], heard: Mapping[str, Any]) -> list[Site]:
    """What scoring would call attention, so that stacks get the same names, and whatever else was heard."""
    known = family(str(config.get("model_type", "")))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    sites = [
        site
        for site in find_sites(shapes, config)
        if not any(ends_with(site.template, skip) for skip in known.skip) or _owner(site.path, heard)
    ]
    placed = {_owner(site.path, heard) for site in sites}
    bare = [
        Site(path, TABLE[0], "", "", {}, bool(CROSS.search(path)), scope_of(config, path))
        for path in heard
        if path not in placed
    ]
    return sorted(sites + bare, key=lambda site: (site.template, site.indices))


def _owner(path: str, heard: Mapping[str, Any]) -> str | None:
    """The module heard whose tensors lie at `path`: itself, or the nearest around it."""
    while path and path not in heard:
        path = path.rpartition(".")[0]
    return path or None
