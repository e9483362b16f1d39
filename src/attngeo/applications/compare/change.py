"""What changed between two models: the distance of their forms and the change of every score, per layer and head.

Layers are paired by stack and number, heads by number. How far two forms M = Q Kᵀ are apart comes from products of
their factors:

    M_A − M_B = (Q_A − Q_B) K_Aᵀ + Q_B (K_A − K_B)ᵀ = U Vᵀ,   U = [Q_A − Q_B, Q_B],   V = [K_A, K_A − K_B]
    ‖M_A − M_B‖² = Σ (UᵀU)_ab (VᵀV)_ab
    ⟨M_A, M_B⟩ = Σ (Q_AᵀQ_B)_ab (K_AᵀK_B)_ab

The first two lines keep their digits where the models are nearly the same: the differences are taken before anything is
squared. Small factors are multiplied in float64, large ones in float32 unless the sum cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from attngeo.arrays import AnyFloats
from attngeo.errors import InputError
from attngeo.io.threads import each, prefetch
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers
from attngeo.weights.scoring.engine import SMALL
from attngeo.weights.scoring.formulas import gram_matrix, inner, product
from attngeo.weights.scoring.layer import COLUMNS as SCORES
from attngeo.weights.scoring.layer import layer_form, layer_rows
from attngeo.weights.scoring.score_table import Row, null_if_nan

CANCELLED = 1e-3  # a sum this small beside its terms has lost float32 digits and is computed again in float64

# Column → polars type. A score stands beside its change, score of B − score of A, where both models have it.
COLUMNS = {
    "stack": "String",
    "layer": "Int64",
    "head": "Int64",  # null in the rows of layer forms
    "change": "Float64",  # ‖M_A − M_B‖/‖M_A‖
    "cosine": "Float64",  # of M_A and M_B
    "match": "Int64",  # the head of B that the best assignment of the layer's heads gives this head
    "match_cosine": "Float64",  # the cosine with that head
} | {name: "Float64" for score in SCORES for name in (score, f"{score}_change")}


# ---- layers


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
        both = " and ".join(
            "×".join(map(str, dict.fromkeys(widths(layers, layer))))
            for layers, layer in zip((a, b), common[0], strict=True)
        )
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


# ---- two forms


@dataclass(frozen=True, eq=False)
class Form:
    """M = Q Kᵀ of one head or of a layer. The factors are transposed, as checkpoints store them."""

    query: AnyFloats  # [r, d_q], Qᵀ
    key: AnyFloats  # [r, d_k], Kᵀ
    norm: float  # ‖M‖

    @property
    def work(self) -> int:
        """Multiply-adds of one product of factors."""
        return self.query.size * len(self.query)


def change(a: Form, b: Form) -> float:
    """Return ‖M_A − M_B‖/‖M_A‖: 0 where both forms are zero, NaN where the first one alone is.

    >>> query, key = np.eye(4)[:2], np.eye(4)[2:]
    >>> change(Form(query, key, 2**0.5), Form(query, 3 * key, 18**0.5))  # M_B = 3 M_A
    2.0
    """
    rank = max(len(a.query), len(b.query))  # heads of two sizes: the smaller one has columns of zeros
    query_a, key_a, query_b, key_b = (_rows(_double_if_small(w), rank) for w in (a.query, a.key, b.query, b.key))
    u, size_u = _in_range(np.concatenate([query_a - query_b, query_b]))  # [2r, d_q]
    v, size_v = _in_range(np.concatenate([key_a, key_a - key_b]))  # [2r, d_k]
    squared, terms = _squared_norm(u, v)
    if squared < CANCELLED * terms:
        squared, _ = _squared_norm(u.astype(np.float64), v.astype(np.float64))
    difference = math.sqrt(max(0.0, squared)) * size_u * size_v
    return difference / a.norm if a.norm > 0 else 0.0 if difference == 0 else math.nan


def cosine(a: Form, b: Form) -> float:
    """Return ⟨M_A, M_B⟩/(‖M_A‖‖M_B‖), NaN where either form is zero; the factors may differ in r.

    >>> query, key = np.eye(4)[:2], np.eye(4)[2:]
    >>> round(cosine(Form(query, key, 2**0.5), Form(query, -3 * key, 18**0.5)), 6)
    -1.0
    """
    if not (a.norm > 0 and b.norm > 0):
        return math.nan
    sides = [_in_range(_double_if_small(w)) for w in (a.query, b.query, a.key, b.key)]
    (query_a, _), (query_b, _), (key_a, _), (key_b, _) = sides
    both = inner(product(query_a, query_b.T), product(key_a, key_b.T))  # of [r_a, r_b]
    return max(-1.0, min(1.0, float(both) * math.prod(size for _, size in sides) / a.norm / b.norm))


def _squared_norm(u: AnyFloats, v: AnyFloats) -> tuple[float, float]:
    """Return ‖U Vᵀ‖² of factors [2r, d], and the sum of what the two halves of their rows have without each other."""
    r = len(u) // 2
    gram_u, gram_v = gram_matrix(u.mT), gram_matrix(v.mT)  # [2r, 2r]
    terms = sum(float(inner(gram_u[half, half], gram_v[half, half])) for half in (slice(r), slice(r, None)))
    return float(inner(gram_u, gram_v)), terms


def _double_if_small(w: AnyFloats) -> AnyFloats:
    return w.astype(np.float64) if w.size * len(w) <= SMALL else w


def _rows(w: AnyFloats, count: int) -> AnyFloats:
    """Return factors with rows of zeros added up to `count`."""
    return w if len(w) == count else np.pad(w, ((0, count - len(w)), (0, 0)))


def _in_range(w: AnyFloats) -> tuple[AnyFloats, float]:
    """Return factors divided by a power of two so that no square overflows or vanishes, and this power."""
    size = 2.0 ** (math.frexp(np.abs(w).max())[1] - 1)
    return w / w.dtype.type(size), size


# ---- the table


def change_rows(pair: LayerPair) -> tuple[list[Row], list[Form], list[Form]]:
    """Return the rows of one layer, the layer form first, and the forms of all heads of either model.

    Where the head count of either model is unknown, the whole layer is the one head of both.
    """
    (rows_a, forms_a), (rows_b, forms_b) = (_scored_forms(side) for side in (pair.a, pair.b))

    def row(head: int | None, i: int, j: int) -> Row:
        of_a, of_b = forms_a[i], forms_b[j]
        found: Row = {"stack": pair.a.stack, "layer": pair.a.layer, "head": head}
        found |= {"change": null_if_nan(change(of_a, of_b)), "cosine": null_if_nan(cosine(of_a, of_b))}
        for score in SCORES:
            before, after = rows_a[i].get(score), rows_b[j].get(score)
            found[score] = before
            found[f"{score}_change"] = after - before if before is not None and after is not None else None
        return found

    of_heads = each(lambda head: row(head[0], 1 + head[1], 1 + head[2]), pair.heads, 4 * forms_a[-1].work)
    heads = slice(1, None) if pair.heads_known else slice(1)
    return [row(None, 0, 0), *of_heads], forms_a[heads], forms_b[heads]


def _scored_forms(layer: Layer) -> tuple[list[Row], list[Form]]:
    """Return the scores and the forms of a layer: its layer form, then its heads where their number is known."""
    rows, sides = layer_rows(layer), [layer_form(layer)]
    if layer.heads_known:
        sides += [(query, layer.key[head // layer.group_size]) for head, query in enumerate(layer.query)]
    return rows, [Form(q.mT, k.mT, row["norm"]) for (q, k), row in zip(sides, rows, strict=True)]
