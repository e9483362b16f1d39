"""What the removal of heads costs, by each criterion, given the heads of the same layer that were removed before.

    error        by how much the removal raises ‖z_R W_R‖², the error without a refit, cross-terms included
    refit        tr(W_uᵀ (K_uu)⁻¹ W_u), the error that is left after the refit
    sensitivity  tr(W_uᵀ (K_uu)⁻¹ W_u Γ), the same error, each direction weighted by how much the loss depends on it
    folders      of each folder of the head tree one head stays, the medoid
    entropy      heads whose logits are least sparse in the Haar basis go first
    random       heads go in random order

W_u are the rows of a unit u of heads in the output projection. C and Γ are defined in `measure`; K = (C + λI)⁻¹ over
the entries that are left. Removing u changes

    W ← W − K_·u (K_uu)⁻¹ W_u,   K ← K − K_·u (K_uu)⁻¹ K_u·

which is one block step of the elimination that the full refit would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from attngeo.applications.prune.plan import Head, parse_head
from attngeo.applications.prune.removal import PrunableLayer, blocks
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.capture import capture
from attngeo.organization.grow import flexible_tree
from attngeo.organization.organize import organize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attngeo.applications.prune.measure import Calibration
    from attngeo.applications.prune.rows import Batch

METHODS = ("refit", "error", "sensitivity", "folders", "entropy", "random")
NEEDS_GRADIENTS = ("sensitivity",)
PENALTY = 1e-2  # λ, as a multiple of the mean diagonal of C
ROUNDING = 1e-7  # of the mean diagonal of C before it is centred: a smaller λ would not outweigh its rounding
ROWS, POSITIONS = 4, 64  # calibration rows whose logits are captured, and token positions of each

Unit = tuple[int, ...]  # the query heads, by their positions in the layer, that are removed together


class LayerCosts(Protocol):
    """The costs of the units of one layer, given the units that were removed before."""

    def costs(self) -> Mapping[int, float]:
        """Return the cost of each unit that is still there."""

    def remove(self, unit: int) -> None:
        """Note that `unit` is removed; the costs of the others may change."""


def method_costs(
    calibration: Calibration, method: str, units: Sequence[Sequence[Unit]], *, kept: int, seed: int
) -> list[LayerCosts]:
    """Return the costs of the units of each layer by one of METHODS.

    kept: how many heads of the model are to stay, for the method "folders"
    """
    layers = calibration.layers
    moments = [one.fit for one in calibration.statistics.layers.values()]
    if method == "error":
        return [ErrorCosts(*one) for one in zip(layers, units, moments, strict=True)]
    if method == "refit":
        return [RefitCosts(*one) for one in zip(layers, units, moments, strict=True)]
    if method == "sensitivity":
        return [RefitCosts(*one) for one in zip(layers, units, moments, calibration.sensitivity, strict=True)]
    if method == "random":
        generator = np.random.default_rng(seed)
        scores = [generator.random(layer.heads.queries) for layer in layers]
    else:
        scores = _organized_scores(calibration, method, kept)
    return [
        FixedCosts({unit: float(score[list(heads)].sum()) for unit, heads in enumerate(own)})
        for score, own in zip(scores, units, strict=True)
    ]


class FixedCosts:
    """Costs that do not depend on what was removed before."""

    def __init__(self, costs: Mapping[int, float]) -> None:
        self._left = dict(costs)

    def costs(self) -> Mapping[int, float]:
        return self._left

    def remove(self, unit: int) -> None:
        del self._left[unit]


class ErrorCosts:
    """By how much the removal of a unit raises the error without a refit."""

    def __init__(self, layer: PrunableLayer, units: Sequence[Unit], moments: Floats) -> None:
        heads, size, weight = layer.heads.queries, layer.heads.size, layer.weight  # [H·r, d]
        product = moments[: len(weight), : len(weight)] * (weight @ weight.T)  # [H·r, H·r]
        by_head = product.reshape(heads, size, heads, size).sum((1, 3))  # [H, H], tr(W_hᵀ C_he W_e)
        member = np.array([[float(head in unit) for head in range(heads)] for unit in units])  # [U, H]
        self._products = member @ by_head @ member.T  # [U, U]
        self._removed: list[int] = []

    def costs(self) -> Mapping[int, float]:
        total = np.diag(self._products) + 2 * self._products[:, self._removed].sum(1)
        return {unit: float(total[unit]) for unit in range(len(total)) if unit not in self._removed}

    def remove(self, unit: int) -> None:
        self._removed.append(unit)


class RefitCosts:
    """The error that is left after the removal of a unit and the refit of the others, in the metric Γ if given."""

    def __init__(
        self, layer: PrunableLayer, units: Sequence[Unit], moments: Floats, gamma: Floats | None = None
    ) -> None:
        self._weight = layer.weight.copy()  # [n, d]
        n = len(self._weight)
        diagonal = float(np.mean(np.diag(moments)[:n]))
        if len(moments) > n:  # the bias gives back the mean of what is lost, so C is taken about the mean
            mean = moments[:n, n]
            moments = moments[:n, :n] - np.outer(mean, mean) / max(moments[n, n], 1e-300)
        # Positive even where all heads of the layer have zero outputs, or constant ones before a bias.
        penalty = max(PENALTY * float(np.mean(np.diag(moments))), ROUNDING * diagonal, 1e-30)
        self._inverse = np.linalg.inv(moments + penalty * np.eye(n))  # [n, n], K
        self._rows = {unit: blocks(heads, layer.heads.size) for unit, heads in enumerate(units)}
        self._root: Floats | None = None  # F [d, d] with F Fᵀ = Γ
        if gamma is not None:
            values, vectors = np.linalg.eigh(gamma)
            self._root = vectors * np.sqrt(values.clip(0))

    def costs(self) -> Mapping[int, float]:
        found = {}
        for unit, rows in self._rows.items():
            weight = self._weight[rows] if self._root is None else self._weight[rows] @ self._root  # [u, d]
            found[unit] = float(np.sum(weight * (np.linalg.inv(self._inverse[np.ix_(rows, rows)]) @ weight)))
        return found

    def remove(self, unit: int) -> None:
        rows = self._rows.pop(unit)
        columns = self._inverse[:, rows]  # [n, u]
        step = columns @ np.linalg.inv(self._inverse[np.ix_(rows, rows)])  # [n, u]
        self._weight -= step @ self._weight[rows]
        self._inverse -= step @ columns.T


@dataclass(frozen=True, eq=False)
class OrganizedHeads:
    """The heads of one stack: their affinity, and the l1 entropy of each, averaged over rows.

    A layer that the model uses several times (ALBERT) has each of its heads once per use.
    """

    heads: tuple[Head, ...]
    affinity: Floats  # [n, n]
    entropy: Floats  # [n], Σ|Haar coefficients| / their l2 norm


def organized_heads(model: PreTrainedModel, layers: Sequence[PrunableLayer], rows: Sequence[Batch]) -> OrganizedHeads:
    """Return the heads of the layers of one stack, organised, from the logits that a second pass captures."""
    stack = layers[0].stack
    used: list[int] = []  # the layers in the order in which they are called
    with ExitStack() as cleanup:
        for layer in layers:
            hook = layer.module.register_forward_pre_hook(lambda *_, number=layer.layer: used.append(number))
            cleanup.callback(hook.remove)
        captured = [
            capture(
                model,
                {name: value[:, :POSITIONS] if value.dim() == 2 else value for name, value in row.inputs.items()},
                stack=stack,
            )
            for row in rows[:ROWS]
        ]
    organised = [organize(tensor, refine=False) for tensor in captured]
    heads = [parse_head(label, [stack]) for label in captured[0].heads]  # type: ignore[union-attr]
    if len({head.layer for head in heads}) != len(layers):  # the layers of the labels are uses of layers
        heads = [Head(stack, used[head.layer], head.head) for head in heads]
    affinity = np.mean([one.affinities[2] for one in organised], 0)
    entropies = [np.asarray(one.expand().entropy("head", normalised=True)) for one in organised]  # [n] each
    return OrganizedHeads(tuple(heads), affinity, np.mean(entropies, 0))


def _organized_scores(calibration: Calibration, method: str, kept: int) -> list[Floats]:
    """Return the scores [H] of each layer; a layer that is used many times has the mean over its uses."""
    total = sum(layer.heads.queries for layer in calibration.layers)
    of_head: dict[Head, list[float]] = {}
    for stack in calibration.organized:
        folders = folder_scores(stack.affinity, kept * len(stack.heads) // total)
        scores = {"folders": folders, "entropy": -stack.entropy}[method]
        for head, score in zip(stack.heads, scores, strict=True):
            of_head.setdefault(head, []).append(float(score))
    for layer in calibration.layers:
        if not all(head in of_head for head in layer.labels):
            raise InputError(f"{layer.stack} layer {layer.layer}: its heads were not captured; choose another method")
    return [np.array([np.mean(of_head[head]) for head in layer.labels]) for layer in calibration.layers]


def folder_scores(affinity: Floats, kept: int) -> Floats:
    """Return scores [n] by which `kept` heads of a stack remain: the medoid of each folder, then those least like it.

    affinity: [n, n]
    The folders are those of the finest level of the head tree that has at most `kept` of them.

    >>> at = np.array([0.0, 1, 2.5, 50, 51.5, 52.5])  # two groups of three heads on a line
    >>> folder_scores(np.exp(-np.abs(at[:, None] - at)), kept=2).argsort()[-2:].tolist()  # the middle of each stays
    [1, 4]
    """
    tree = flexible_tree(affinity)
    level = max((row for row in range(tree.depth) if tree.widths[row] <= max(1, kept)), default=0)
    scores = np.empty(len(affinity))
    for folder in range(tree.widths[level]):
        members = np.flatnonzero(tree.levels[level] == folder)
        inside = affinity[np.ix_(members, members)]
        medoid = int(np.argmax(inside.sum(0)))
        scores[members] = 1 - inside[:, medoid] / max(inside.max(), 1e-300)
        scores[members[medoid]] = 2.0
    return scores
