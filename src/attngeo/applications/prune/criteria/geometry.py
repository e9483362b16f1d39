"""Criteria from the organisation of the network: one head per folder of the head tree, or the entropy of each head.

Both come from the attention logits on a few calibration rows, captured in a second pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.prune.calibration.rows import Batch
from attngeo.applications.prune.labels import Head, parse_head
from attngeo.applications.prune.plan import stacks_of
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.capture.capture import capture
from attngeo.organization.organize import organize
from attngeo.organization.questionnaire.flexible_tree import flexible_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS, POSITIONS = 4, 64  # rows that are captured, and token positions of each


@dataclass(frozen=True, eq=False)
class HeadGeometry:
    """The heads of one stack: their affinity, and the l1 entropy of each, averaged over rows."""

    heads: tuple[Head, ...]
    affinity: Floats  # [n, n]
    entropy: Floats  # [n], Σ|Haar coefficients| / their l2 norm


def head_geometry(model: PreTrainedModel, layers: Sequence[PrunableLayer], rows: Sequence[Batch]) -> list[HeadGeometry]:
    """Return the geometry of the heads of each stack, from the logits of the first rows."""
    found = []
    for stack in stacks_of(layers):
        captured = [capture(model, _shortened(row.inputs), stack=stack) for row in rows[:ROWS]]
        organised = [organize(tensor, refine=False) for tensor in captured]
        heads = tuple(parse_head(label, [stack]) for label in captured[0].heads)  # type: ignore[union-attr]
        affinity = np.mean([one.affinities[2] for one in organised], 0)
        entropies = [np.asarray(one.expand().entropy("head", normalised=True)) for one in organised]  # [n] each
        found.append(HeadGeometry(heads, affinity, np.mean(entropies, 0)))
    return found


def folder_scores(geometry: HeadGeometry, kept: int) -> dict[Head, float]:
    """Return scores by which `kept` heads of a stack remain: the medoid of each folder, then those least like it.

    The folders are those of the coarsest level of the head tree that has at most `kept` of them.
    """
    tree = flexible_tree(geometry.affinity)
    level = max((row for row in range(tree.depth) if tree.widths[row] <= max(1, kept)), default=0)
    scores: dict[Head, float] = {}
    for folder in range(tree.widths[level]):
        members = np.flatnonzero(tree.levels[level] == folder)
        inside = geometry.affinity[np.ix_(members, members)]
        medoid = int(np.argmax(inside.sum(0)))
        for index, member in enumerate(members):
            likeness = float(inside[index, medoid] / max(inside.max(), 1e-300))
            scores[geometry.heads[member]] = 2.0 if index == medoid else 1 - likeness
    return scores


def entropy_scores(geometry: HeadGeometry) -> dict[Head, float]:
    """Return scores by which the heads whose logits are least sparse in the Haar basis go first."""
    return {head: -float(value) for head, value in zip(geometry.heads, geometry.entropy, strict=True)}


def by_layer(layers: Sequence[PrunableLayer], scores: dict[Head, float]) -> list[Floats]:
    """Return the scores [H] of each layer; a layer that is used many times has the mean over its uses."""
    found = []
    for layer in layers:
        if all(head in scores for head in layer.labels):
            found.append(np.array([scores[head] for head in layer.labels]))
        else:
            raise InputError(f"{layer.stack} layer {layer.layer}: its heads were not captured; choose another method")
    return found


def _shortened(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a row with at most POSITIONS token positions."""
    return {name: value[:, :POSITIONS] if value.dim() == 2 else value for name, value in inputs.items()}
