"""The re-paired null: queries of a model scored with keys they were not trained with.

Each head is paired with the keys of another group of its layer, by one seeded derangement of the groups. Where a layer
has one group, and for layer forms, the keys come from another layer of the same stack and shapes: the previous one, and
the last one for the first. The layers are thus deranged too, and only two of them are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import LayerFactors, head_scores, layer_scores
from attngeo.weights.scoring.rows import Row, null_if_nan

SEED = 0

# Keys can be exchanged between layers that agree in stack, shape of the queries, shape of the keys and G. The first
# entry is "layer" for layer forms and "head" for heads.
Kind = tuple[str, str, tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, eq=False)
class UnpairedForms:
    """The form of a layer, or its heads, which are to be scored with the keys of another layer."""

    rows: Sequence[Row]
    key: Factors  # their own
    scores_with: Callable[[Factors], Sequence[FormScores]]

    def pair_with(self, key: Factors) -> None:
        """Fill in the columns, unless the keys are the forms' own: the same layer, or one that shares its weights."""
        own = self.key.w
        if bool((key.w[0, :, 0] == own[0, :, 0]).all()) and bool((key.w == own).all()):
            return
        fill_repaired(self.rows, self.scores_with(key))


@dataclass(frozen=True)
class RepairedNull:
    """Fills the columns whose names end in `_repaired` while the layers of a model are scored.

    Layer forms and heads are independent of each other and may be added in different threads.
    """

    first: dict[Kind, UnpairedForms] = field(default_factory=dict)
    last: dict[Kind, Factors] = field(default_factory=dict)  # the keys of the last layer

    def add_layer(self, stack: str, factors: LayerFactors, row: Row, rotary: RotaryPairs | None = None) -> None:
        """Score the form of the next layer; `row` is its row.

        rotary: how queries and keys rotate, also when keys of another layer take the place of its own
        """
        groups, figures = factors.groups, Figures(dominance=False, rotary=rotary)
        query = factors.layer_query.without_summands()  # a null does not need the last digits
        self._pair(
            ("layer", stack, factors.query.w.shape, factors.key.w.shape, groups),
            UnpairedForms([row], factors.layer_key, lambda key: [layer_scores(query, key, figures, groups)]),
        )

    def add_heads(
        self, stack: str, factors: LayerFactors, rows: Sequence[Row], rotary: RotaryPairs | None = None
    ) -> None:
        """Score the heads of the next layer; `rows` are their rows."""
        figures = Figures(dominance=False, rotary=rotary)
        query, key = factors.heads
        if factors.groups > 1:
            fill_repaired(rows, head_scores(query, key, derangement(factors.groups), figures))
        else:
            self._pair(
                ("head", stack, query.w.shape, key.w.shape, 1),
                UnpairedForms(rows, key, lambda other: head_scores(query, other, figures=figures)),
            )

    def _pair(self, kind: Kind, forms: UnpairedForms) -> None:
        """Score forms with the keys of the previous layer; those of the first layer wait for the last one."""
        if kind in self.first:
            forms.pair_with(self.last[kind])
        else:
            self.first[kind] = forms
        self.last[kind] = forms.key

    def close(self) -> None:
        """Pair the first layer of each kind with the keys of the last one."""
        for kind, forms in self.first.items():
            forms.pair_with(self.last[kind])


def derangement(groups: int) -> list[int]:
    """Return another group for each of at least two groups: a random cycle through all, the same at every call.

    >>> derangement(4)
    [1, 2, 3, 0]
    """
    cycle = np.random.default_rng([SEED, groups]).permutation(groups)
    partner = np.empty(groups, dtype=int)
    partner[cycle] = np.roll(cycle, 1)
    return [int(g) for g in partner]


def fill_repaired(rows: Sequence[Row], scored: Sequence[FormScores]) -> None:
    """Fill in the columns from the scores with other keys."""
    for row, scores in zip(rows, scored, strict=True):
        row["symmetry_repaired"] = null_if_nan(scores.symmetry)
        row["directionality_repaired"] = null_if_nan(scores.directionality)
        row["symmetry_rope_repaired"] = null_if_nan(scores.rotary.symmetry)
        row["directionality_rope_repaired"] = null_if_nan(scores.rotary.directionality)
