"""What changed between two models: the distance of their forms and the change of every score, per layer and head.

Layers are paired by stack and number, heads by label. The relative change and the cosine of two forms come from
products of their factors:

    M_A − M_B = (Q_A − Q_B) K_Aᵀ + Q_B (K_A − K_B)ᵀ = U Vᵀ,   U = [Q_A − Q_B, Q_B],   V = [K_A, K_A − K_B]
    ‖M_A − M_B‖² = Σ (UᵀU)_ab (VᵀV)_ab
    ⟨M_A, M_B⟩ = (‖M_A‖² + ‖M_B‖² − ‖M_A − M_B‖²)/2 = Σ (Q_AᵀQ_B)_ab (K_AᵀK_B)_ab

The first two lines keep their digits where the models are nearly the same: the differences are taken before anything is
squared. Factors are stored transposed, [r, d], as in `weights.scoring`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import AnyFloats
from attngeo.errors import InputError
from attngeo.io.tables import table_of
from attngeo.io.threads import each, prefetch
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers
from attngeo.weights.scoring.layer import LayerFactors
from attngeo.weights.scoring.norms import gram_matrix, product
from attngeo.weights.scoring.score import layer_rows
from attngeo.weights.scoring.score_table import Row, null_if_nan
from attngeo.weights.scoring.symmetry import squared_norm

if TYPE_CHECKING:
    import polars as pl


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


UNEQUAL = 4  # the product of two forms whose norms differ by more than this factor is lost in ‖M_A‖² + ‖M_B‖²
CANCELLED = 1e-3  # a sum this small beside its terms has lost float32 digits and is computed again in float64


@dataclass(frozen=True)
class FormChange:
    """How far one form is from another; NaN where only the first form (for the cosine: either form) is zero."""

    change: float  # ‖M_A − M_B‖/‖M_A‖; 0 where both are zero
    cosine: float  # ⟨M_A, M_B⟩/(‖M_A‖‖M_B‖)


def head_changes(
    a: LayerFactors,
    b: LayerFactors,
    pairs: Sequence[tuple[int, int]],
    norms: Sequence[tuple[float, float]],
) -> list[FormChange]:
    """Return the change of each pair of heads.

    pairs: (head of a, head of b)
    norms: (‖M_A‖, ‖M_B‖) of each pair
    """
    (query_a, key_a), (query_b, key_b) = a.heads, b.heads

    def work(item: tuple[tuple[int, int], tuple[float, float]]) -> FormChange:
        (i, j), both = item
        sides = query_a[i].mT, query_b[j].mT, key_a[i // a.group_size].mT, key_b[j // b.group_size].mT  # [r, d]
        return _change(*sides, both)

    _, d, r = query_a.shape
    return each(work, list(zip(pairs, norms, strict=True)), 4 * d * r * r)


def layer_change(a: LayerFactors, b: LayerFactors, norms: tuple[float, float]) -> FormChange:
    """Return the change of the layer form; norms: (‖M_A‖, ‖M_B‖)."""
    (query_a, key_a), (query_b, key_b) = a.form, b.form  # [d, G r]
    return _change(query_a.mT, query_b.mT, key_a.mT, key_b.mT, norms)


def head_cosines(
    a: LayerFactors, b: LayerFactors, pairs: Sequence[tuple[int, int]], norms: Sequence[tuple[float, float]]
) -> list[float]:
    """Return the cosine of each pair of heads, as in `head_changes`; the heads may differ in size."""
    (query_a, key_a), (query_b, key_b) = a.heads, b.heads

    def work(item: tuple[tuple[int, int], tuple[float, float]]) -> float:
        (i, j), both = item
        inner = _inner(query_a[i].mT, query_b[j].mT, key_a[i // a.group_size].mT, key_b[j // b.group_size].mT)
        return _ratio(inner, both[0] * both[1])

    _, d, r = query_a.shape
    return each(work, list(zip(pairs, norms, strict=True)), 2 * d * r * r)


def _change(
    query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats, norms: tuple[float, float]
) -> FormChange:
    norm_a, norm_b = norms
    if query_a.shape == query_b.shape:
        squared = squared_difference(query_a, query_b, key_a, key_b)
        inner = (norm_a**2 + norm_b**2 - squared) / 2
        if max(norms) > UNEQUAL * min(norms):
            inner = _inner(*(side.astype(np.float64) for side in (query_a, query_b, key_a, key_b)))
    else:  # heads of two sizes have no difference of factors, and their forms are far apart
        inner = _inner(query_a, query_b, key_a, key_b)
        squared = max(0.0, norm_a**2 + norm_b**2 - 2 * inner)
    change = math.sqrt(squared) / norm_a if norm_a > 0 else 0.0 if squared == 0 else math.nan
    return FormChange(change, _ratio(inner, norm_a * norm_b))


def squared_difference(query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats) -> float:
    """Return ‖M_A − M_B‖² of two forms whose factors [r, d] have the same shapes.

    >>> query, key = np.eye(4)[:2], np.eye(4)[2:]
    >>> squared_difference(query, query, key, 3 * key)  # M_B = 3 M_A, ‖M_A‖² = 2
    8.0
    """
    r = len(query_a)
    u, v = np.concatenate([query_a - query_b, query_b]), np.concatenate([key_a, key_a - key_b])  # [2r, d_q], [2r, d_k]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        gram_u, gram_v = _gram(u), _gram(v)  # [2r, 2r]
        squared = inner_product(gram_u, gram_v)
        terms = inner_product(gram_u[:r, :r], gram_v[:r, :r]) + inner_product(gram_u[r:, r:], gram_v[r:, r:])
    if squared > CANCELLED * terms and float(np.finfo(u.dtype).tiny / np.finfo(u.dtype).eps) < squared < math.inf:
        return squared
    if not (u[:r].any() or v[r:].any()):
        return 0.0
    scales = [float(np.abs(side).max()) or 1.0 for side in (u, v)]  # so that no square overflows
    u, v = (side.astype(np.float64) / scale for side, scale in zip((u, v), scales, strict=True))
    return max(0.0, inner_product(_gram(u), _gram(v))) * (scales[0] * scales[1]) ** 2


def _inner(query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats) -> float:
    """Return ⟨M_A, M_B⟩; the factors [r, d] of the two forms may differ in r."""
    sides = query_a, query_b, key_a, key_b
    scales = [float(np.abs(side).max()) or 1.0 for side in sides]  # so that no product overflows or vanishes
    query_a, query_b, key_a, key_b = (side / scale for side, scale in zip(sides, scales, strict=True))
    return inner_product(product(query_a, query_b.T), product(key_a, key_b.T)) * math.prod(scales)  # of [r_a, r_b]


def inner_product(a: AnyFloats, b: AnyFloats) -> float:
    """Return Σ a_ij b_ij."""
    return float(squared_norm(a, b))


def _gram(w: AnyFloats) -> AnyFloats:
    return gram_matrix(w.mT)  # type: ignore[no-any-return]


def _ratio(inner: float, norms: float) -> float:
    return max(-1.0, min(1.0, inner / norms)) if norms > 0 else math.nan


# The scores whose change is given, where both models have them.
SCORES = (
    "symmetry",
    "directionality",
    "symmetry_rope",
    "directionality_rope",
    "dominance",
    "self_attending",
    "rank_symmetric",
    "rank_skew",
    "norm",
)

# Column → polars type. A score stands beside its change, score of B − score of A.
COLUMNS = {
    "stack": "String",
    "layer": "Int64",
    "head": "Int64",  # null in the rows of layer forms
    "change": "Float64",  # ‖M_A − M_B‖/‖M_A‖
    "cosine": "Float64",  # of M_A and M_B
    "match": "Int64",  # the head of B that the best assignment of the layer's heads gives this head
    "match_cosine": "Float64",  # the cosine with that head
} | {name: "Float64" for score in SCORES for name in (score, f"{score}_change")}


def change_rows(pair: LayerPair, a: LayerFactors, b: LayerFactors) -> tuple[list[Row], list[float], list[float]]:
    """Return the rows of one layer, the layer form first, and the norms ‖M‖ of all heads of either model.

    Where the head count of either model is unknown, the whole layer is the one head of both.
    """
    rows_a, rows_b = (layer_rows(side) for side in (pair.a, pair.b))
    forms = slice(1, None) if pair.heads_known else slice(1)
    norms_a, norms_b = ([row["norm"] for row in rows[forms]] for rows in (rows_a, rows_b))
    labelled = pair.heads
    rows = [_row(pair, None, rows_a[0], rows_b[0], layer_change(a, b, (rows_a[0]["norm"], rows_b[0]["norm"])))]
    pairs = [(i, j) for _, i, j in labelled]
    changes = head_changes(a, b, pairs, [(norms_a[i], norms_b[j]) for i, j in pairs])
    for (label, i, j), change in zip(labelled, changes, strict=True):
        rows.append(_row(pair, label, rows_a[1 + i], rows_b[1 + j], change))
    return rows, norms_a, norms_b


def change_frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Return the rows as a frame with the columns COLUMNS; a missing key becomes null."""
    return table_of(rows, COLUMNS)


def _row(pair: LayerPair, head: int | None, of_a: Row, of_b: Row, change: FormChange) -> Row:
    row: Row = {"stack": pair.a.stack, "layer": pair.a.layer, "head": head}
    row |= {"change": null_if_nan(change.change), "cosine": null_if_nan(change.cosine)}
    for score in SCORES:
        before, after = of_a.get(score), of_b.get(score)
        row[score] = before
        row[f"{score}_change"] = after - before if before is not None and after is not None else None
    return row
