"""`head_forms`: the row and column norms and the spectra of chosen heads of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.directionality import threshold
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.head_form.part_spectra import part_spectra
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class HeadForm:
    """The form of one head of self-attention: its scores, the norms of its rows and columns, and its spectra."""

    model: str
    stack: str
    layer: int
    head: int
    symmetry: float
    directionality: float
    norm: float  # ‖M‖
    row_norms: Floats  # [d], of the query side
    column_norms: Floats  # [d], of the key side
    row_threshold: float  # mean + 2·std, above which directionality counts a norm
    column_threshold: float
    symmetric: Floats  # [min(2r, d)], eigenvalues of the symmetric part, largest first
    skew: Floats  # [min(2r, d)], those of the skew part divided by i

    @property
    def label(self) -> str:
        """The head as "L3H7"."""
        return f"L{self.layer}H{self.head}"


def extreme_heads(frame: pl.DataFrame) -> list[tuple[str, int, int]]:
    """Return stack, layer and head of the highest, the median and the lowest symmetry of each stack.

    frame: columns as in `ScoreTable.frame`, of one model; heads of cross-attention and heads that are zero are left out

    >>> extreme_heads(attngeo.score(attngeo.bundled("encoder")).frame)
    [('encoder', 3, 2), ('encoder', 0, 3), ('encoder', 1, 3)]
    """
    import polars as pl

    heads = frame.filter(pl.col("head").is_not_null(), ~pl.col("cross"), pl.col("symmetry").is_not_null())
    chosen: list[tuple[str, int, int]] = []
    for part in heads.partition_by("stack", maintain_order=True):
        ranked = part.sort("symmetry", descending=True).select("stack", "layer", "head").rows()
        chosen += dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]])
    return chosen


def head_forms(
    ref: CheckpointRef,
    heads: Iterable[tuple[str, int, int]],
    *,
    num_heads: int | None = None,
    unproven: bool = False,
    model: str | None = None,
) -> tuple[HeadForm, ...]:
    """Return the forms of chosen heads of `ref`, in the order in which they are given; only their layers are read.

    heads:     stack, layer and head of each
    num_heads, unproven: as in `score`
    model:     the name in the result; by default that of `ref`

    >>> (form,) = head_forms(attngeo.bundled("encoder"), [("encoder", 2, 1)])
    >>> form.label, form.row_norms.shape, form.symmetric.shape
    ('L2H1', (128,), (64,))
    >>> share = np.square(form.symmetric).sum() / form.norm**2  # of the energy in the symmetric part
    >>> bool(np.isclose(share, (1 + form.symmetry) / 2))
    True
    """
    wanted = list(heads)
    layers = {layer for _, layer, _ in wanted}
    stacks = {stack for stack, _, _ in wanted}
    found: dict[tuple[str, int, int], HeadForm] = {}
    if not wanted:
        return ()
    with open_layers(ref, num_heads=num_heads, stack=stacks, layers=layers, unproven=unproven) as source:
        name = source.model if model is None else model
        for weights in source:
            for place, number in enumerate(weights.head_numbers):
                key = (weights.stack, weights.layer, number)
                if key in wanted and not weights.cross:
                    form = Form(weights.query[place], weights.key[place // weights.group_size])
                    found[key] = _head_form(name, key, form)
        missing = [key for key in wanted if key not in found]
        if missing:
            stack, layer, head = missing[0]
            raise InputError(f"{name}: the {stack} has no head L{layer}H{head} of self-attention")
    return tuple(found[key] for key in wanted)


def _head_form(model: str, key: tuple[str, int, int], form: Form) -> HeadForm:
    rows, columns = form.row_norms(), form.column_norms()
    symmetric, skew = part_spectra(form.query, form.key)
    return HeadForm(
        model,
        *key,
        symmetry=form.symmetry(),
        directionality=form.directionality(),
        norm=form.norm(),
        row_norms=rows,
        column_norms=columns,
        row_threshold=float(threshold(rows)[0]) if len(rows) > 1 else float(np.inf),
        column_threshold=float(threshold(columns)[0]) if len(columns) > 1 else float(np.inf),
        symmetric=symmetric,
        skew=skew,
    )
