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
from attngeo.weights.layout.facts import Family, family
from attngeo.weights.layout.find import attention_like, find_layers, find_norm, is_unused, left_out
from attngeo.weights.layout.heads import check_width, count_heads
from attngeo.weights.layout.layer import Layer, Read
from attngeo.weights.layout.rope import with_rotary
from attngeo.weights.layout.stacks import name_stacks
from attngeo.weights.layout.storage import Shapes
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.open import CheckpointRef, open_checkpoint

_SHOWN = 6  # names of tensors in the message about an unknown layout
_ADVICE = (  # for authors of a model of their own
    "pass a state dict with layers.0.q_proj.weight, layers.0.k_proj.weight, … [out, in] and num_heads (--num-heads)"
)
_SINGLE_HEAD = re.compile(r"(?:^|[._])heads?\.\d+$")  # "blocks.3.attention.heads.0": a module per head


@dataclass(frozen=True)
class Layers:
    """The attention layers of an open checkpoint. Iteration reads them in order, once."""

    checkpoint: Checkpoint
    unread: tuple[Layer, ...]  # the layers without their arrays
    closes: bool = True  # whether leaving the context closes the checkpoint; one that the caller opened stays open
    left_out: tuple[str, ...] = ()  # remarks about attention layers of the checkpoint that are not among these

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
        return len(self.unread)

    def __iter__(self) -> Iterator[Layer]:
        self.checkpoint.plan_reads([request for layer in self.unread for request in layer.requests])
        return self.read_with(self.checkpoint.read)

    def read_with(self, read: Read) -> Iterator[Layer]:
        """Yield each layer with arrays of the type that `read` returns for a ReadRequest."""
        return (layer.read(read) for layer in self.unread)

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
) -> Iterator[Layer]:
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
    found = find_layers(shapes, checkpoint.config)
    unused, used = _parted(found, is_unused)
    if not used:  # nothing but layers that predict further tokens: a model of its own, which drafts them
        unused, used = [], found
    skipped, confirmed = _parted(used, lambda layer: not unproven and layer.facts.skips(layer.template))
    _check_known(checkpoint, confirmed, unproven)
    counted = _counted(checkpoint, shapes, name_stacks(confirmed, checkpoint.config), num_heads)
    chosen = with_rotary(_choose(checkpoint, counted, stack, layers), checkpoint.ref)
    if norms or (norms is None and not checkpoint.remote):
        chosen = [replace(layer, stored_norm=find_norm(layer, shapes)) for layer in chosen]
    # Where no head count is known, one head holds the whole layer.
    chosen = [
        replace(layer, heads=layer.storage.single_head(shapes)) if layer.heads is None else layer for layer in chosen
    ]
    scored = counted if stack is None else chosen
    remarks = left_out(shapes, scored, skipped, unused, checkpoint.ref, whole=stack is None)
    return Layers(checkpoint, tuple(chosen), left_out=remarks)


def _model_type(checkpoint: Checkpoint) -> str:
    return str((checkpoint.config or {}).get("model_type", ""))


def _parted(layers: list[Layer], belongs: Callable[[Layer], bool]) -> tuple[list[Layer], list[Layer]]:
    """Return the layers for which `belongs` is true, and the others."""
    return [layer for layer in layers if belongs(layer)], [layer for layer in layers if not belongs(layer)]


def _counted(checkpoint: Checkpoint, shapes: Shapes, layers: list[Layer], num_heads: int | None) -> list[Layer]:
    """Return the layers with their heads counted."""
    try:
        for layer in layers:
            check_width(layer, shapes)
        return [count_heads(layer, shapes, num_heads, checkpoint.config) for layer in layers]
    except LayoutError:
        for name in (name for layer in layers for name in layer.tensors):
            checkpoint.check_readable(name)  # packed weights have other shapes; that they are packed says more
        raise


def _choose(
    checkpoint: Checkpoint,
    found: list[Layer],
    stack: str | Collection[str] | None,
    layers: int | Collection[int] | None,
) -> list[Layer]:
    """Return the layers that the options `stack` and `layers` select."""
    wanted = _chosen_stacks(stack)
    stacks = list(dict.fromkeys(layer.stack for layer in found))
    if wanted is not None and not wanted <= set(stacks):
        missing = ", ".join(sorted(wanted - set(stacks)))
        raise LayoutError(f"{checkpoint.ref}: no stack {missing}; the model has {', '.join(stacks)}")
    numbers = chosen_layers(layers)
    in_stacks = [layer for layer in found if wanted is None or layer.stack in wanted]
    chosen = [layer for layer in in_stacks if numbers is None or layer.layer in numbers]
    if not chosen:
        highest = max(layer.layer for layer in found)
        raise LayoutError(
            f"{checkpoint.ref}: none of the layers asked for exist; layers are numbered from 0 to {highest}"
        )
    check_highest(numbers, max(layer.layer for layer in in_stacks), checkpoint.ref)
    return chosen


def _check_known(checkpoint: Checkpoint, layers: list[Layer], unproven: bool) -> None:
    """Raise LayoutError for a checkpoint without attention, of a refused type, or of an unproven layout."""
    model_type = _model_type(checkpoint)
    known: Family = family(model_type)
    if known.status == "refused":
        raise LayoutError(f"{checkpoint.ref}: model type {model_type} is refused: {known.reason}")
    if not layers:
        names = attention_like(checkpoint.tensors)
        if known.status == "none" or not names:
            raise LayoutError(f"{checkpoint.ref}: no self-attention found among its {len(checkpoint.tensors)} tensors")
        advice = "" if model_type else f"; a transformers model needs its config.json beside it, for others {_ADVICE}"
        shown = first_names(names, _SHOWN if model_type else 1)  # the line has room for the advice
        raise LayoutError(
            f"{checkpoint.ref}: unknown layout; none of its tensors are known as queries and keys: {shown}{advice}"
        )
    single = None if known.status == "right" else next((one for one in layers if _SINGLE_HEAD.search(one.path)), None)
    if single is not None:
        raise LayoutError(
            f"{checkpoint.ref}: {single.storage.query} holds the queries of one head by the name of its module; "
            f"join the heads of each layer over their rows (torch.cat), and {_ADVICE}"
        )
    other = next((one for one in layers if one.facts.status != "right" and one.scope and one.scope.other_type), None)
    if other is not None and other.scope is not None:
        known, model_type = other.facts, f"{model_type} with a part of type {other.scope.other_type}"
    unambiguous = all(one.row is not None and one.row.unambiguous for one in layers)
    if unproven or known.status == "right" or (not model_type and unambiguous):
        return
    first = layers[0].storage.query
    what = f"model type {model_type}" if model_type else f"the layout of {first} without a transformers config"
    reason = f" ({known.reason})" if known.reason else ""
    raise UnprovenError(
        f"{checkpoint.ref}: {what} was never checked against a live model{reason}; "
        "--unproven (unproven=True) scores it all the same"
    )
