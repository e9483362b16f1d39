"""Criteria from the organisation of the network: one head per folder of the head tree, or the entropy of each head.

Both come from the attention logits on a few calibration rows, captured in a second pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.prune.calibration.rows import Batch
from attngeo.applications.prune.labels import Head, parse_head
from attngeo.applications.prune.plan import stacks_of
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.capture import capture
from attngeo.organization.grow import flexible_tree
from attngeo.organization.organize import organize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS, POSITIONS = 4, 64  # rows that are captured, and token positions of each


@dataclass(frozen=True, eq=False)
class OrganizedHeads:
    """The heads of one stack: their affinity, and the l1 entropy of each, averaged over rows.

    A layer that the model uses several times (ALBERT) has each of its heads once per use.
    """

    heads: tuple[Head, ...]
    affinity: Floats  # [n, n]
    entropy: Floats  # [n], Σ|Haar coefficients| / their l2 norm


def organized_heads(
    model: PreTrainedModel, layers: Sequence[PrunableLayer], rows: Sequence[Batch]
) -> list[OrganizedHeads]:
    """Return the heads of each stack, organised, from the logits of the first rows."""
    found = []
    for stack in stacks_of(layers):
        own = [layer for layer in layers if layer.stack == stack]
        with ExitStack() as cleanup:
            used = _recorded_uses(own, cleanup)
            captured = [capture(model, _shortened(row.inputs), stack=stack) for row in rows[:ROWS]]
        organised = [organize(tensor, refine=False) for tensor in captured]
        heads = _heads_of_uses(captured[0].heads, own, used)  # type: ignore[union-attr]
        affinity = np.mean([one.affinities[2] for one in organised], 0)
        entropies = [np.asarray(one.expand().entropy("head", normalised=True)) for one in organised]  # [n] each
        found.append(OrganizedHeads(heads, affinity, np.mean(entropies, 0)))
    return found


def folder_scores(stack: OrganizedHeads, kept: int) -> Floats:
    """Return scores [n] by which `kept` heads of a stack remain: the medoid of each folder, then those least like it.

    The folders are those of the finest level of the head tree that has at most `kept` of them.
    """
    tree = flexible_tree(stack.affinity)
    level = max((row for row in range(tree.depth) if tree.widths[row] <= max(1, kept)), default=0)
    scores = np.empty(len(stack.heads))
    for folder in range(tree.widths[level]):
        members = np.flatnonzero(tree.levels[level] == folder)
        inside = stack.affinity[np.ix_(members, members)]
        medoid = int(np.argmax(inside.sum(0)))
        scores[members] = 1 - inside[:, medoid] / max(inside.max(), 1e-300)
        scores[members[medoid]] = 2.0
    return scores


def entropy_scores(stack: OrganizedHeads) -> Floats:
    """Return scores [n] by which the heads whose logits are least sparse in the Haar basis go first."""
    return -stack.entropy


def by_layer(layers: Sequence[PrunableLayer], scored: Iterable[tuple[OrganizedHeads, Floats]]) -> list[Floats]:
    """Return the scores [H] of each layer; a layer that is used many times has the mean over its uses."""
    of_head: dict[Head, list[float]] = {}
    for stack, scores in scored:
        for head, score in zip(stack.heads, scores, strict=True):
            of_head.setdefault(head, []).append(float(score))
    for layer in layers:
        if not all(head in of_head for head in layer.labels):
            raise InputError(f"{layer.stack} layer {layer.layer}: its heads were not captured; choose another method")
    return [np.array([np.mean(of_head[head]) for head in layer.labels]) for layer in layers]


def _recorded_uses(layers: Sequence[PrunableLayer], cleanup: ExitStack) -> list[PrunableLayer]:
    """Return a list to which every later call of one of the layers is appended, until `cleanup`."""
    calls: list[PrunableLayer] = []
    for layer in layers:
        hook = layer.module.register_forward_pre_hook(lambda *_, layer=layer: calls.append(layer))
        cleanup.callback(hook.remove)
    return calls


def _heads_of_uses(
    labels: Sequence[str], layers: Sequence[PrunableLayer], used: Sequence[PrunableLayer]
) -> tuple[Head, ...]:
    """Return the head that each captured label means; the layers of the labels are uses where layers are shared.

    used: the layers in the order in which they were called
    """
    heads = tuple(parse_head(label, [layers[0].stack]) for label in labels)
    uses = len({head.layer for head in heads})
    if uses == len(layers):
        return heads
    return tuple(replace(head, layer=used[head.layer - uses].layer) for head in heads)  # of the last run


def _shortened(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a row with at most POSITIONS token positions."""
    return {name: value[:, :POSITIONS] if value.dim() == 2 else value for name, value in inputs.items()}
