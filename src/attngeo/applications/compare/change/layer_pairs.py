"""Pair the attention layers of two models by stack and number, and their heads by label."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from attngeo.errors import InputError
from attngeo.io.threads import prefetch
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers


@dataclass(frozen=True)
class LayerPair:
    """One layer of the first model with the layer of the second model that has the same stack and number."""

    a: Layer
    b: Layer

    @property
    def heads_known(self) -> bool:
        """Return whether the number of heads of both layers is known."""
        return self.a.heads_known and self.b.heads_known

    @property
    def heads(self) -> list[tuple[int, int, int]]:
        """Return (number, index in a, index in b) of the heads that both layers have.

        A pruned layer keeps the numbers of the full model. Two full layers with different head counts have no heads in
        common.
        """
        of_a, of_b = self.a.head_numbers, self.b.head_numbers
        pruned = self.a.numbers is not None or self.b.numbers is not None
        if not self.heads_known or (len(of_a) != len(of_b) and not pruned):
            return []
        index = {number: j for j, number in enumerate(of_b)}
        return [(number, i, index[number]) for i, number in enumerate(of_a) if number in index]


@dataclass(frozen=True)
class PairedLayers:
    """The layers that two models have in common. Iteration reads them in order, once, one pair at a time."""

    a: Layers
    b: Layers  # as many layers as `a`, in the same order
    same_depth: bool  # both models have the same stacks, with the same layers
    notes: tuple[str, ...] = ()  # what is left out, and which stacks were paired under different names

    def __iter__(self) -> Iterator[LayerPair]:
        with (
            closing(prefetch(self.a, stop=self.a.stop)) as of_a,
            closing(prefetch(self.b, stop=self.b.stop)) as of_b,
        ):
            for a, b in zip(of_a, of_b, strict=True):
                yield LayerPair(a, b)
                del a, b  # so that their memory is freed before the next pair is waited for


def pair_layers(a: Layers, b: Layers) -> PairedLayers:
    """Return the layers that both models have and whose forms have the same width.

    Layers are paired by stack and number. Two models with one stack each are paired whatever the stacks are called, so
    that an encoder can be compared with the decoder that was trained from the same initialisation.

    InputError: there are none, because the stacks or the widths differ
    """
    stacks_a, stacks_b = (list(dict.fromkeys(layer.stack for layer in layers.unread)) for layers in (a, b))
    renamed = {stacks_b[0]: stacks_a[0]} if len(stacks_a) == len(stacks_b) == 1 else {}
    notes = []
    if renamed and stacks_a != stacks_b:
        notes.append(f"The stack {stacks_a[0]} of {a.model} is compared with the stack {stacks_b[0]} of {b.model}")
    of_b = {(renamed.get(layer.stack, layer.stack), layer.layer): layer for layer in b.unread}
    common = [(layer, of_b[layer.stack, layer.layer]) for layer in a.unread if (layer.stack, layer.layer) in of_b]
    if not common:
        names_a, names_b = ", ".join(stacks_a), ", ".join(stacks_b)
        raise InputError(
            f"{a.model} has the stacks {names_a}, {b.model} has {names_b}: expected a stack that both have"
        )
    same = [pair for pair in common if widths(a, pair[0]) == widths(b, pair[1])]
    if not same:
        both = " and ".join(_width_text(layers, layer) for layers, layer in zip((a, b), common[0], strict=True))
        raise InputError(f"{a.model} and {b.model} have the widths {both}: forms of different width have no cosine")
    if len(same) < len(common):
        notes.append(f"{len(common) - len(same)} of {len(common)} common layers differ in width and are left out")
    same_depth = len(common) == a.count == b.count
    if not same_depth:
        notes.append(f"{len(common)} layers are in both models; {a.model} has {a.count}, {b.model} has {b.count}")
    return PairedLayers(
        replace(a, unread=tuple(layer for layer, _ in same)),
        replace(b, unread=tuple(layer for _, layer in same)),
        same_depth,
        tuple(notes),
    )


def widths(layers: Layers, layer: Layer) -> tuple[int, int]:
    """Return the widths of the vectors that the queries and the keys of a layer read."""
    return layer.storage.widths({name: layers.checkpoint.tensors[name].shape for name in layer.storage.inputs})


def _width_text(layers: Layers, layer: Layer) -> str:
    return "×".join(map(str, dict.fromkeys(widths(layers, layer))))
