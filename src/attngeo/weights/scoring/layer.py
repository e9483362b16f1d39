"""The rows of one attention layer in a score table: its layer form and its heads, compared with both nulls.

layer_rows                 the scores of a layer and of its heads, plain and with the preceding norm folded in
RepairedNull               the re-paired null, which needs the keys of other layers
head_scores, layer_scores  the scores of the heads, and of the layer form
layer_form, side_by_side   the factors of the layer form
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attngeo.arrays import is_torch, namespace, to_numpy
from attngeo.io.threads import each, together
from attngeo.weights.layout.layer import Layer, Norm, layer_form_factors
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import SMALL, Scores, score_precisely
from attngeo.weights.scoring.formulas import self_attending_std
from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from attngeo.weights.scoring.rotary import frequency_rows
from attngeo.weights.scoring.score_table import Row, null_if_nan

AT_ONCE = 2**21  # entries of the queries multiplied at once, which bounds the memory of their products
SEED = 0  # of the groups whose keys are exchanged

# The columns that `Scores` fills, and those of them that the re-paired null and the folded norm have too.
COLUMNS = ("symmetry", "directionality", "symmetry_rope", "directionality_rope", "dominance", "self_attending",
           "rank_symmetric", "rank_skew", "norm")  # fmt: skip
REPAIRED, FOLDED = COLUMNS[:4], COLUMNS[:2]


# ---- scores


def layer_form(layer: Layer) -> tuple[Any, Any]:
    """Return the factors `[d_q, G·r]` and `[d_k, G·r]` of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ."""
    query = layer.query
    if layer.group_size > 1 and not is_torch(query):
        # Heads may cancel each other, so their sum is in float64.
        grouped = query.reshape(layer.groups, layer.group_size, *query.shape[1:])
        query = np.stack(each(lambda heads: heads.sum(0, dtype=np.float64), grouped, grouped[0].size))
    query, key = layer_form_factors(query, layer.key)
    return side_by_side(query), side_by_side(key)


def side_by_side(factors: Any) -> Any:
    """Return factors `[..., G, d, r]` as one factor `[..., d, G·r]`; it shares memory that is stored as [G, r, d]."""
    *batch, groups, d, r = factors.shape
    return factors.mT.reshape(*batch, groups * r, d).mT


def layer_scores(
    query: Any,
    key: Any,
    rotary: RotaryPairs | None = None,
    *,
    groups: int,
    norm: Norm | None = None,
    ranks: bool = False,
) -> Scores[Any]:
    """Return the scores of a layer form, each `[1]`, from the factors that `layer_form` returns.

    groups: G
    norm:   if given, the norm that is folded in
    ranks:  also the effective ranks
    """
    query, key = (fold_norm(w, norm)[None] for w in (query, key))
    return score_precisely(query, key, rotary, groups=groups, ranks=ranks)


def head_scores(
    layer: Layer,
    rotary: RotaryPairs | None = None,
    *,
    key: Any = None,
    norm: Norm | None = None,
    ranks: bool = False,
) -> Scores[Any]:
    """Return the scores of every head, each `[H]`; norm and ranks as for `layer_scores`.

    key: if given, keys [G, d_k, r] in place of the layer's own
    """
    d, r = layer.query.shape[1:]
    groups, size = layer.groups, layer.group_size
    query = layer.query.reshape(groups, size, d, r)
    keys = (layer.key if key is None else key)[:, None]  # [G, 1, d_k, r]
    some = size if size * d * r <= AT_ONCE else max(1, AT_ONCE // (d * r))  # heads of a group at once
    more = max(1, AT_ONCE // (some * d * r)) if some == size else 1  # groups at once
    tasks = [(slice(i, i + more), slice(j, j + some)) for i in range(0, groups, more) for j in range(0, size, some)]

    def work(task: tuple[slice, slice]) -> Scores[Any]:
        some_query, some_key = fold_norm(query[task], norm), fold_norm(keys[task[0]], norm)
        scores = score_precisely(some_query, some_key, rotary, ranks=ranks)  # [groups, heads]
        return scores.each(lambda values: values.reshape(values.shape[0] * values.shape[1], *values.shape[2:]))

    first, *others = each(work, tasks, 0 if is_torch(query) else more * some * d * r * r)
    return first.each(lambda *parts: namespace(parts[0]).concatenate(parts), *others)


def fold_norm(w: Any, norm: Norm | None) -> Any:
    """Return factors `[..., d, r]` with the norm before the attention folded in: C diag(g) W, with C for LayerNorm."""
    if norm is None:
        return w
    gain = norm.gain[:, None]  # [d, 1]
    if is_torch(w):
        folded = w * gain
        return folded - folded.mean(-2, keepdim=True) if norm.centred else folded
    small = w.shape[-2] * w.shape[-1] ** 2 <= SMALL
    if not small and not norm.centred:
        return w * gain
    folded = w.astype(np.float64) * gain  # float64, because subtracting the mean may cancel
    if norm.centred:
        folded -= folded.mean(-2, keepdims=True)
    return folded if small else folded.astype(w.dtype)


# ---- the re-paired null

# Keys can be exchanged between layers that agree in stack, shape of the queries and shape of the keys. The first entry
# is "layer" for layer forms and "head" for heads.
Kind = tuple[str, str, tuple[int, ...], tuple[int, ...]]
Fill = Callable[[Any], None]  # scores forms with the keys it is given, and fills in their rows


class RepairedNull:
    """The re-paired null: queries of a model scored with keys they were not trained with.

    Each head is paired with the keys of another group of its layer, by one seeded derangement of the groups. Where a
    layer has one group, and for layer forms, the keys come from another layer of the same stack and shapes: the
    previous one, and the last one for the first. The layers are thus deranged too, and only two of them are in memory
    at a time. Layer forms and heads are independent of each other and may be added in different threads.
    """

    def __init__(self) -> None:
        self._first: dict[Kind, tuple[Any, Fill]] = {}  # the forms of the first layer, which wait for the last one
        self._last: dict[Kind, Any] = {}  # the keys of the last layer

    def add(self, kind: Kind, key: Any, fill: Fill) -> None:
        """Pair forms, whose own keys are `key`, with the keys of the previous layer of this kind."""
        if kind in self._first:
            _fill_with(self._last[kind], key, fill)
        else:
            self._first[kind] = key, fill
        self._last[kind] = key

    def close(self) -> None:
        """Pair the first layer of each kind with the keys of the last one."""
        for kind, (key, fill) in self._first.items():
            _fill_with(self._last[kind], key, fill)


def _fill_with(other: Any, key: Any, fill: Fill) -> None:
    """Score forms with other keys, unless these are their own: of the same layer, or of one that shares its weights."""
    if not (bool((other[..., 0] == key[..., 0]).all()) and bool((other == key).all())):
        fill(other)


def derangement(groups: int) -> list[int]:
    """Return another group for each of at least two groups: a random cycle through all, the same at every call.

    >>> derangement(4)
    [1, 2, 3, 0]
    """
    cycle = np.random.default_rng([SEED, groups]).permutation(groups)
    partner = np.empty(groups, dtype=int)
    partner[cycle] = np.roll(cycle, 1)
    return [int(g) for g in partner]


# ---- rows


def layer_rows(
    layer: Layer,
    *,
    heads: bool = True,
    finer: bool = True,
    repaired: RepairedNull | None = None,
    pairs: list[Row] | None = None,
) -> list[Row]:
    """Return the row of the layer, followed by those of its heads where their number is known; no model is named.

    finer:    also compute the scores under rotary position embedding and the effective ranks
    repaired: if given, also fill the columns of both nulls; those of the re-paired one may wait for the last layer
    pairs:    if given, gets the rows of rotary pairs
    """
    rotary = turning_pairs(layer) if finer else None
    norm = None if layer.cross else layer.norm
    groups, shapes = layer.groups, (tuple(layer.query.shape), tuple(layer.key.shape))

    def of_layer() -> list[Row]:
        query, key = layer_form(layer)
        rows = _rows(layer, [None], layer_scores(query, key, rotary, groups=groups, ranks=finer))
        if repaired is not None:

            def fill(other: Any) -> None:
                _add_columns(rows, layer_scores(query, other, rotary, groups=groups), REPAIRED, "_repaired")

            repaired.add(("layer", layer.stack, *shapes), key, fill)
        if norm is not None:
            _add_columns(rows, layer_scores(query, key, groups=groups, norm=norm), FOLDED, "_folded")
        return rows

    def of_heads() -> list[Row]:
        scores = head_scores(layer, rotary, ranks=finer)
        rows = _rows(layer, layer.head_numbers, scores)
        if pairs is not None and rotary is not None and rows[0]["query_width"] == rows[0]["key_width"]:
            terms = [to_numpy(values) for values in (scores.alpha, scores.beta, scores.energy)]  # [H, n]
            for row, alpha, beta, energy in zip(rows, *terms, strict=True):
                names = {name: row[name] for name in ("stack", "layer", "head")}
                pairs.extend(frequency_rows(names, alpha, beta, energy, rotary))

        def fill(other: Any) -> None:
            _add_columns(rows, head_scores(layer, rotary, key=other), REPAIRED, "_repaired")

        if repaired is not None and groups > 1:
            fill(layer.key[derangement(groups)])
        elif repaired is not None:
            repaired.add(("head", layer.stack, *shapes), layer.key, fill)
        if norm is not None:
            _add_columns(rows, head_scores(layer, norm=norm), FOLDED, "_folded")
        return rows

    work = math.prod(layer.query.shape) * layer.query.shape[2]  # multiply-adds of one product per head
    parts = together([of_layer, of_heads] if heads and layer.heads_known else [of_layer], work)
    rows = [row for part in parts for row in part]
    if repaired is not None:
        for row in rows:
            _add_gaussian_null(row, layer, rotary)
    return rows


def turning_pairs(layer: Layer) -> RotaryPairs | None:
    """Return the rotary pairs of a layer, None where nothing is known to rotate."""
    rotates = layer.rotary_known and layer.rotary is not None and len(layer.rotary.turning) > 0
    return layer.rotary if rotates else None


def _rows(layer: Layer, heads: Sequence[int | None], scores: Scores[Any]) -> list[Row]:
    """Return the rows of forms from their scores; the head None is the layer form."""
    r = layer.key.shape[2]
    common = {
        "stack": layer.stack,
        "layer": layer.layer,
        "query_width": layer.query.shape[1],
        "key_width": layer.key.shape[1],
        "qk_norm": layer.qk_norm,
        "cross": layer.cross,
        "rotary": "not proved" if not layer.rotary_known else "no" if turning_pairs(layer) is None else "yes",
    }
    rows = [common | {"head": head, "rank": layer.groups * r if head is None else r} for head in heads]
    _add_columns(rows, scores, COLUMNS)
    if layer.cross:  # queries and keys are different tokens, so that none attends to itself
        for row in rows:
            row["self_attending"] = None
    return rows


def _add_columns(rows: Sequence[Row], scores: Scores[Any], names: Sequence[str], suffix: str = "") -> None:
    """Add these scores to the rows of forms, as columns with a suffix."""
    for name in names:
        for row, value in zip(rows, to_numpy(getattr(scores, name)).tolist(), strict=True):
            row[name + suffix] = null_if_nan(value)


def _add_gaussian_null(row: Row, layer: Layer, rotary: RotaryPairs | None) -> None:
    """Add the columns that compare a form with independent Gaussian factors of the same shape."""
    d_query, d_key, r = row["query_width"], row["key_width"], row["rank"]
    null = gaussian_null(d_query, d_key, r)
    levels = {score: null.level(score) for score in ("symmetry", "directionality", "dominance")}
    levels["self_attending"] = 0.0, self_attending_std(min(r, d_query), d_query)
    nulls = {"directionality": null}
    if rotary is not None:
        size = layer.key.shape[2]
        still = rotary.fixed(size)  # dimensions of a head that do not rotate
        factor = rotary.factor / float(rotary.scale(size)[still].mean()) if len(still) else 1.0
        groups = layer.groups if row["head"] is None else 1
        null = rotary_null(d_query, d_key, groups, len(rotary.turning), len(still), factor)
        levels |= {f"{score}_rope": null.level(score) for score in ("symmetry", "directionality")}
        nulls["directionality_rope"] = null
    for score, (mean, std) in levels.items():
        if row[score] is not None:
            row[f"{score}_chance"], row[f"{score}_chance_std"] = mean, null_if_nan(std)
            row[f"{score}_z"] = (row[score] - mean) / std if std > 0 else None
    for score, null in nulls.items():
        if row[score] is not None:
            row[f"{score}_p"] = null.directionality_p(row[score])
