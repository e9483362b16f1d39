"""The re-paired null: queries of a model scored with keys they were not trained with.

Each head is paired with the keys of another group of its layer, by one seeded derangement of the groups. Where a layer
has one group, and for layer forms, the keys come from another layer of the same stack and shapes: the previous one, and
the last one for the first. The layers are thus deranged too, and only two of them are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import Scores
from attngeo.weights.scoring.layer import LayerFactors, head_scores, layer_scores
from attngeo.weights.scoring.score_table import Row, score_columns

SEED = 0
COLUMNS = ("symmetry", "directionality", "symmetry_rope", "directionality_rope")

# Keys can be exchanged between layers that agree in stack, shape of the queries and shape of the keys. The first entry
# is "layer" for layer forms and "head" for heads.
Kind = tuple[str, str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class _Unpaired:
    """The form of a layer, or its heads, which are to be scored with the keys of another layer."""

    rows: Sequence[Row]
    key: Any  # their own
    scores_with: Callable[[Any], Scores[Any]]

    def pair_with(self, key: Any) -> None:
        """Fill in the columns, unless the keys are the forms' own: the same layer, or one that shares its weights."""
        if not (bool((key[..., 0] == self.key[..., 0]).all()) and bool((key == self.key).all())):
            fill_repaired(self.rows, self.scores_with(key))


@dataclass(frozen=True)
class RepairedNull:
    """Fills the columns whose names end in `_repaired` while the layers of a model are scored.

    Layer forms and heads are independent of each other and may be added in different threads.
    """

    first: dict[Kind, _Unpaired] = field(default_factory=dict)
    last: dict[Kind, Any] = field(default_factory=dict)  # the keys of the last layer

    def add_layer(self, stack: str, factors: LayerFactors, row: Row, rotary: RotaryPairs | None = None) -> None:
        """Score the form of the next layer; `row` is its row.

        rotary: how queries and keys rotate, also when keys of another layer take the place of its own
        """
        kind = ("layer", stack, tuple(factors.query.shape), tuple(factors.key.shape))
        unpaired = _Unpaired([row], factors.form[1], lambda key: layer_scores(factors, rotary, key=key))
        self._pair(kind, unpaired)

    def add_heads(
        self, stack: str, factors: LayerFactors, rows: Sequence[Row], rotary: RotaryPairs | None = None
    ) -> None:
        """Score the heads of the next layer; `rows` are their rows."""
        if factors.groups > 1:
            key = factors.key[derangement(factors.groups)]
            fill_repaired(rows, head_scores(factors, rotary, key=key))
            return
        kind = ("head", stack, tuple(factors.query.shape), tuple(factors.key.shape))
        self._pair(kind, _Unpaired(rows, factors.key, lambda key: head_scores(factors, rotary, key=key)))

    def _pair(self, kind: Kind, forms: _Unpaired) -> None:
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


def fill_repaired(rows: Sequence[Row], scores: Scores[Any]) -> None:
    """Fill in the columns from the scores with other keys."""
    for row, found in zip(rows, score_columns(scores, COLUMNS), strict=True):
        row |= {f"{name}_repaired": value for name, value in found.items()}
