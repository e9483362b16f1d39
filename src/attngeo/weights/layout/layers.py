"""From a checkpoint to its attention layers, one at a time, only the bytes of queries and keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attngeo.errors import InputError, LayoutError, UnprovenError
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.families import Family, ends_with, family
from attngeo.weights.layout.norms import NormPlace, find_norm, read_norm
from attngeo.weights.layout.sites import Site, check_width, count_heads, find_sites, unplaced
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.storage import cut, wants
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest


@dataclass(frozen=True)
class Plan:
    """One layer about to be read."""

    stack: str
    layer: int
    site: Site
    norm: NormPlace | None


@dataclass(frozen=True)
class Layers:
    """The attention layers of an open checkpoint; iterate once, in order."""

    checkpoint: Checkpoint
    plans: tuple[Plan, ...]
    known: Family

    @property
    def model(self) -> str:
        return self.checkpoint.ref

    @property
    def count(self) -> int:
        return len(self.plans)

    @property
    def remote(self) -> bool:
        return self.checkpoint.remote

    def __iter__(self) -> Iterator[AttentionWeights]:
        self.checkpoint.plan_reads([want for plan in self.plans for want in self._wants(plan)])
        for plan in self.plans:
            query, key = cut(self.checkpoint, plan.site, self.known.offset)
            yield AttentionWeights(
                stack=plan.stack,
                layer=plan.layer,
                query=query,
                key=key,
                heads_known=plan.site.heads is not None,
                cross=plan.site.cross,
                qk_norm=self.known.qk_norm or any(plan.site.gains),
                norm=None if plan.norm is None else read_norm(self.checkpoint, plan.norm),
                tensors=(plan.site.query, plan.site.key),
            )

    def _wants(self, plan: Plan) -> list[ReadRequest]:
        norm = [] if plan.norm is None else [ReadRequest(plan.norm.tensor)]
        return norm + wants(plan.site, self.checkpoint.tensors)

    def __enter__(self) -> Layers:
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoint.close()


def open_layers(
    ref: Any,
    *,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    norms: bool | None = False,
    unproven: bool = False,
) -> Layers:
    """Open `ref` and plan the reading of its attention layers; nothing but headers has been read yet.

    ref       a folder or file, a hub id `org/name[@revision]`, an nn.Module, a state dict
    num_heads the head count, where no transformers config says it
    stack     only these stacks; layers: only these layers of each
    norms     also read the norm before each attention (None: unless the source is remote)
    unproven  take a layout that no live model of its type has confirmed
    """
    from attngeo.weights.sources.open import open_checkpoint

    checkpoint = open_checkpoint(ref)
    try:
        return _plan(checkpoint, num_heads, stack, layers, norms, unproven)
    except BaseException:
        checkpoint.close()
        raise


def attention_layers(ref: Any, **options: Any) -> Iterator[AttentionWeights]:
    """Queries [H, d, r] and keys [G, d, r] of each attention layer of `ref`; options as in `open_layers`."""
    with open_layers(ref, **options) as layers:
        yield from layers


def chosen_layers(layers: int | Collection[int] | None) -> frozenset[int] | None:
    """The numbers of the layers asked for, one or several; None: all of them.

    >>> chosen_layers(3), chosen_layers([0, 3]) == {0, 3}
    (frozenset({3}), True)
    """
    if layers is None:
        return None
    asked = list(layers) if isinstance(layers, Iterable) else [layers]
    if not asked:
        raise InputError("layers: none were asked for")
    for layer in asked:
        if not hasattr(layer, "__index__") or layer < 0:
            raise InputError(f"layers: expected numbers of layers from 0 up, got {layer!r}")
    return frozenset(int(layer) for layer in asked)


def _plan(
    checkpoint: Checkpoint,
    num_heads: int | None,
    stack: str | Collection[str] | None,
    layers: int | Collection[int] | None,
    norms: bool | None,
    unproven: bool,
) -> Layers:
    if num_heads is not None and num_heads < 1:
        raise LayoutError(f"num_heads is {num_heads}, expected a positive whole number")
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    kind = str((checkpoint.config or {}).get("model_type", ""))
    known = family(kind)
    sites = find_sites(shapes, checkpoint.config)
    if not unproven:
        sites = [site for site in sites if not any(ends_with(site.template, skip) for skip in known.skip)]
    _check(checkpoint, kind, known, sites, unproven)
    for site in sites if known.width else ():
        check_width(site, shapes)
    sites = [count_heads(site, shapes, num_heads) for site in sites]
    placed = name_stacks(sites, checkpoint.config)
    wanted = None if stack is None else {stack} if isinstance(stack, str) else set(stack)
    stacks = list(dict.fromkeys(name for name, _, _ in placed))
    if wanted is not None and not wanted <= set(stacks):
        missing = ", ".join(sorted(wanted - set(stacks)))
        raise LayoutError(f"{checkpoint.ref}: no stack {missing}; it has {', '.join(stacks)}")
    numbers = chosen_layers(layers)
    chosen = [
        item for item in placed if (wanted is None or item[0] in wanted) and (numbers is None or item[1] in numbers)
    ]
    if not chosen:
        highest = max(layer for _, layer, _ in placed)
        raise LayoutError(f"{checkpoint.ref}: none of the layers asked for exist; they run from 0 to {highest}")
    with_norms = not checkpoint.remote if norms is None else norms
    plans = [
        Plan(name, layer, site, find_norm(site, shapes, checkpoint.config, known) if with_norms else None)
        for name, layer, site in chosen
    ]
    return Layers(checkpoint, tuple(plans), known)


def _check(checkpoint: Checkpoint, kind: str, known: Family, sites: list[Site], unproven: bool) -> None:
    if known.status == "refused":
        raise LayoutError(f"{checkpoint.ref}: model type {kind} is refused: {known.reason}")
    if not sites:
        if known.status == "none" or not unplaced(checkpoint.tensors):
            raise LayoutError(f"{checkpoint.ref}: no self-attention found among its {len(checkpoint.tensors)} tensors")
        seen = unplaced(checkpoint.tensors)
        raise LayoutError(
            f"{checkpoint.ref}: unknown layout, no query and key tensors could be placed; it has {', '.join(seen[:6])}"
            + (f" and {len(seen) - 6} more like them" if len(seen) > 6 else "")
        )
    if unproven or known.status == "right" or (not kind and all(s.storage.alone for s in sites)):
        return
    why = f" ({known.reason})" if known.reason else ""
    named = f"model type {kind}" if kind else f"the layout of {sites[0].query} without a transformers config"
    raise UnprovenError(
        f"{checkpoint.ref}: {named} was never checked against a live model{why}; "
        "--unproven (unproven=True) scores it all the same"
    )
