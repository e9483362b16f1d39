"""`open_layers` and `attention_layers`: the attention layers of a checkpoint, read one at a time.

Of each layer only the bytes of its queries and keys are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from attngeo.arguments import is_whole, whole_number
from attngeo.errors import InputError, LayoutError, UnprovenError
from attngeo.io.names import first_names
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.families import Family, family
from attngeo.weights.layout.head_counts import check_width, count_heads
from attngeo.weights.layout.layer_plan import LayerPlan, Read
from attngeo.weights.layout.left_out import is_unused, left_out, left_out_of_stacks
from attngeo.weights.layout.preceding_norm import find_norm
from attngeo.weights.layout.pruned_heads import pruned_sites
from attngeo.weights.layout.qk_norms import QKNorms
from attngeo.weights.layout.rope import rotary_of_sites
from attngeo.weights.layout.site import Site, facts_of
from attngeo.weights.layout.sites import attention_like, find_sites
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.storage.base import Shapes
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.open import CheckpointRef, open_checkpoint

_SHOWN = 6  # names of tensors in the message about an unknown layout
_ADVICE = (  # for authors of a model of their own
    "pass a state dict that names queries and keys layers.0.q_proj.weight, layers.0.k_proj.weight, … [out, in], "
    "with the number of heads (num_heads, --num-heads)"
)
_SINGLE_HEAD = re.compile(r"(?:^|[._])heads?\.\d+$")  # "blocks.3.attention.heads.0": a module per head


@dataclass(frozen=True)
class Layers:
    """The attention layers of an open checkpoint. Iteration reads them in order, once."""

    checkpoint: Checkpoint
    plans: tuple[LayerPlan, ...]
    closes: bool = True  # whether leaving the context closes the checkpoint; one that the caller opened stays open
    left_out: tuple[str, ...] = ()  # remarks about attention layers of the checkpoint that are not among the plans

    @property
    def model(self) -> str:
        """Return the name of the model: what the user typed, or the class of a model in memory."""
        return self.checkpoint.ref

    @property
    def model_type(self) -> str:
        """Return the model type of the config, `diffusers:CLASS` for a diffusers model; "" without a config."""
        return _model_type(self.checkpoint)

    @property
    def count(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[AttentionWeights]:
        self.checkpoint.plan_reads([request for plan in self.plans for request in plan.requests])
        return self.read_with(self.checkpoint.read)

    def read_with(self, read: Read) -> Iterator[AttentionWeights]:
        """Yield the weights of each layer as arrays of the type that `read` returns for a ReadRequest."""
        return (plan.weights(read) for plan in self.plans)

    def stop(self) -> None:
        """End reads of other threads that wait for the network; only closing may follow."""
        self.checkpoint.stop()

    def __enter__(self) -> Layers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.closes:
            self.checkpoint.close()


def open_layers(
    ref: CheckpointRef,
    *,
    config: str | os.PathLike[str] | None = None,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    norms: bool | None = False,
    unproven: bool = False,
) -> Layers:
    """Open `ref` and find its attention layers; only headers are read.

    ref:       a folder or file, a hub id `org/name[@revision]`, a torch module, a state dict, or an open checkpoint,
               which stays open; one on the hub is unusable after a read of it was broken off
    config:    the path of a config.json, instead of the one beside the weights
    num_heads: the number of query heads, where no transformers config declares it
    stack:     only these stacks; None: all
    layers:    only these layers of each stack; None: all
    norms:     also read the norm before each attention; None: only where the source is local
    unproven:  also accept a layout that was never checked against a live model of its type
    """
    if isinstance(ref, Checkpoint):
        return replace(_find_layers(ref, num_heads, stack, layers, norms, unproven), closes=False)
    checkpoint = open_checkpoint(ref, config=config)
    try:
        return _find_layers(checkpoint, num_heads, stack, layers, norms, unproven)
    except BaseException:
        checkpoint.close()
        raise


def attention_layers(
    ref: CheckpointRef,
    *,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    norms: bool | None = False,
    unproven: bool = False,
) -> Iterator[AttentionWeights]:
    """Yield the queries [H, d, r] and keys [G, d, r] of each attention layer of `ref`; options as in `open_layers`.

    >>> import numpy as np
    >>> weights = {f"layers.0.{name}_proj.weight": np.eye(8, dtype=np.float32) for name in "qk"}
    >>> [(layer.stack, layer.query.shape) for layer in attention_layers(weights, num_heads=2)]
    [('encoder', (2, 8, 4))]
    """
    with open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, norms=norms, unproven=unproven) as opened:
        yield from opened


def chosen_layers(layers: int | Collection[int] | None) -> frozenset[int] | None:
    """Return the layer numbers in `layers`, one or several; None: all layers.

    >>> chosen_layers(3), chosen_layers([0, 3]) == {0, 3}
    (frozenset({3}), True)
    """
    if layers is None:
        return None
    numbers = list(layers) if isinstance(layers, Iterable) else [layers]
    if not numbers:
        raise InputError("layers: expected at least one layer number, got an empty collection")
    for number in numbers:
        if not is_whole(number, lowest=0):
            raise InputError(f"layers: expected layer numbers from 0, got {layers!r}")
    return frozenset(int(number) for number in numbers)


def check_highest(numbers: frozenset[int] | None, highest: int, label: str) -> None:
    """Raise InputError if a layer is requested whose number is above the highest; gaps below it are left out."""
    missing = sorted(number for number in numbers or () if number > highest)
    if missing:
        names = ", ".join(map(str, missing[:3])) + (", …" if len(missing) > 3 else "")
        raise InputError(f"{label}: no layer {names}; layers are numbered from 0 to {highest}")


def _chosen_stacks(stack: str | Collection[str] | None) -> set[str] | None:
    if stack is None:
        return None
    wanted = {stack} if isinstance(stack, str) else set(stack) if isinstance(stack, Iterable) else set()
    if not wanted or not all(isinstance(name, str) for name in wanted):
        raise InputError(f"stack: expected the name of a stack, or several names, got {stack!r}")
    return wanted


def _find_layers(
    checkpoint: Checkpoint,
    num_heads: int | None,
    stack: str | Collection[str] | None,
    layers: int | Collection[int] | None,
    norms: bool | None,
    unproven: bool,
) -> Layers:
    num_heads = None if num_heads is None else whole_number(num_heads, "num_heads", 1)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    known = family(_model_type(checkpoint))
    found = find_sites(shapes, checkpoint.config)
    unused, used = _parted(found, is_unused)
    if not used:  # nothing but layers that predict further tokens: a model of its own, which drafts them
        unused, used = [], found
    skipped, confirmed = (
        ([], used) if unproven else _parted(used, lambda site: facts_of(site, known).skips(site.template))
    )
    sites = _counted_sites(checkpoint, shapes, confirmed, known, num_heads, unproven)
    chosen = _choose(checkpoint, name_stacks(sites, checkpoint.config), stack, layers)
    with_norms = not checkpoint.remote if norms is None else norms
    chosen_sites = [site for _, _, site in chosen]
    facts_of_sites = [facts_of(site, known) for site in chosen_sites]
    plans = [
        LayerPlan(
            stack=name,
            layer=layer,
            site=site,
            heads=site.heads_or_whole(shapes),
            norm=find_norm(site, shapes, checkpoint.config, facts) if with_norms else None,
            qk_norm=facts.qk_norm,
            qk_norms=QKNorms.of(site, shapes, facts),
            rotary=rotary,
            rotary_known=rotary_known,
        )
        for (name, layer, site), facts, (rotary, rotary_known) in zip(
            chosen, facts_of_sites, rotary_of_sites(chosen_sites, facts_of_sites, checkpoint.ref), strict=True
        )
    ]
    if stack is None:
        remarks = left_out(shapes, sites, skipped, unused, checkpoint.ref)
    else:
        remarks = left_out_of_stacks(shapes, chosen_sites, checkpoint.ref)
    return Layers(checkpoint, tuple(plans), left_out=remarks)


def _model_type(checkpoint: Checkpoint) -> str:
    return str((checkpoint.config or {}).get("model_type", ""))


def _parted(sites: list[Site], belongs: Callable[[Site], bool]) -> tuple[list[Site], list[Site]]:
    """Return the sites for which `belongs` is true, and the others."""
    return [site for site in sites if belongs(site)], [site for site in sites if not belongs(site)]


def _counted_sites(
    checkpoint: Checkpoint, shapes: Shapes, sites: list[Site], known: Family, num_heads: int | None, unproven: bool
) -> list[Site]:
    """Return the sites with their heads counted; raise where they may not be scored."""
    _check_known(checkpoint, known, sites, unproven)
    try:
        for site in sites:
            if facts_of(site, known).width:
                check_width(site, shapes)
        pruned = pruned_sites(sites, checkpoint.config)
        return [count_heads(site, shapes, num_heads, pruned.get(site.path)) for site in sites]
    except LayoutError:
        for name in (name for site in sites for name in site.tensors):
            checkpoint.check_readable(name)  # packed weights have other shapes; that they are packed says more
        raise


def _choose(
    checkpoint: Checkpoint,
    named: list[tuple[str, int, Site]],
    stack: str | Collection[str] | None,
    layers: int | Collection[int] | None,
) -> list[tuple[str, int, Site]]:
    """Return the (stack, layer, site) that the options `stack` and `layers` select."""
    wanted = _chosen_stacks(stack)
    stacks = list(dict.fromkeys(name for name, _, _ in named))
    if wanted is not None and not wanted <= set(stacks):
        missing = ", ".join(sorted(wanted - set(stacks)))
        raise LayoutError(f"{checkpoint.ref}: no stack {missing}; the model has {', '.join(stacks)}")
    numbers = chosen_layers(layers)
    chosen = [
        item for item in named if (wanted is None or item[0] in wanted) and (numbers is None or item[1] in numbers)
    ]
    if not chosen:
        highest = max(layer for _, layer, _ in named)
        raise LayoutError(
            f"{checkpoint.ref}: none of the layers asked for exist; layers are numbered from 0 to {highest}"
        )
    check_highest(numbers, max(layer for name, layer, _ in named if wanted is None or name in wanted), checkpoint.ref)
    return chosen


def _check_known(checkpoint: Checkpoint, known: Family, sites: list[Site], unproven: bool) -> None:
    """Raise LayoutError for a checkpoint without attention, of a refused type, or of an unproven layout."""
    model_type = _model_type(checkpoint)
    if known.status == "refused":
        raise LayoutError(f"{checkpoint.ref}: model type {model_type} is refused: {known.reason}")
    if not sites:
        names = attention_like(checkpoint.tensors)
        if known.status == "none" or not names:
            raise LayoutError(f"{checkpoint.ref}: no self-attention found among its {len(checkpoint.tensors)} tensors")
        raise LayoutError(
            f"{checkpoint.ref}: unknown layout; none of its tensors are known as queries and keys: "
            + first_names(names, _SHOWN)
            + ("" if model_type else f"; a transformers model needs its config.json beside it, of any other {_ADVICE}")
        )
    single = None if known.status == "right" else next((site for site in sites if _SINGLE_HEAD.search(site.path)), None)
    if single is not None:
        raise LayoutError(
            f"{checkpoint.ref}: {single.query} holds the queries of one head by the name of its module; "
            f"join the heads of each layer over their rows (torch.cat), and {_ADVICE}"
        )
    other = next((s.scope for s in sites if s.scope is not None and s.scope.facts(known).status != "right"), None)
    if other is not None and other.other_type is not None:
        known, model_type = other.facts(known), f"{model_type} with a part of type {other.other_type}"
    if unproven or known.status == "right" or (not model_type and all(site.layout.unambiguous for site in sites)):
        return
    what = f"model type {model_type}" if model_type else f"the layout of {sites[0].query} without a transformers config"
    reason = f" ({known.reason})" if known.reason else ""
    raise UnprovenError(
        f"{checkpoint.ref}: {what} was never checked against a live model{reason}; "
        "--unproven (unproven=True) scores it all the same"
    )
