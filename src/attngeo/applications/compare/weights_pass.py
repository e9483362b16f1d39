"""One pass over the layers of two models: the table of changes, the matched heads, and what the relation test needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attngeo.applications.compare.change.change_table import change_rows
from attngeo.applications.compare.change.form_change import head_cosines
from attngeo.applications.compare.change.layer_pairs import LayerPair, PairedLayers
from attngeo.applications.compare.origin.alignment import FullWidthLayer
from attngeo.applications.compare.origin.matched_cosine import best_assignment, cosine_matrix
from attngeo.applications.compare.origin.reduced_forms import ReducedShape, reduced_forms
from attngeo.arrays import AnyFloats
from attngeo.io.names import first_names
from attngeo.weights.scoring.layer import LayerFactors
from attngeo.weights.scoring.score_table import Row, form_label, null_if_nan

SHOWN = 10  # heads that a note names


@dataclass(eq=False)
class WeightsPass:
    """What one pass over both models collects."""

    shape: ReducedShape | None  # None: no layer has forms that one permutation of the basis acts on
    width: int  # of the layers that the shape is drawn for
    full_width: bool = False  # keep the factors of B for an alignment
    rows: list[Row] = field(default_factory=list)
    reduced: list[tuple[AnyFloats, AnyFloats]] = field(default_factory=list)  # per chosen layer, [d'², heads]
    layers: list[FullWidthLayer] = field(default_factory=list)  # per chosen layer, where `full_width`
    cosines: list[float] = field(default_factory=list)  # mean matched |cosine| of each layer
    only_a: list[str] = field(default_factory=list)  # labels of heads that B does not have
    only_b: list[str] = field(default_factory=list)
    without_heads: set[str] = field(default_factory=set)  # "a", "b": models whose number of heads is not known

    @property
    def cosine(self) -> float:
        """Return the mean matched |cosine| over all layers with forms that are not zero; NaN where there is none."""
        found = [cosine for cosine in self.cosines if not np.isnan(cosine)]
        return float(np.mean(found)) if found else float("nan")

    def run(self, paired: PairedLayers, progress: Callable[[int, int], None] | None = None) -> None:
        """Read all layers, one pair at a time."""
        usable = 0  # layers that the shape applies to
        for done, pair in enumerate(paired, 1):
            a, b = LayerFactors.of(pair.a), LayerFactors.of(pair.b)
            rows, *norms = change_rows(pair, a, b)
            if not pair.heads_known:  # heads of one model cannot be matched to the whole layer of the other
                a, b = (LayerFactors(*(w[None] for w in side.form)) for side in (a, b))
            if self.shape is not None and is_usable(pair, self.width):
                forms = [reduced_forms(side, self.shape.dimensions) for side in (a, b)]  # [d'², H]
                self._match(pair, rows, a, b, forms, norms)
                if usable in self.shape.layers:
                    self._keep(b, forms)
                usable += 1
            self._note_unpaired(pair)
            self.rows += rows
            if progress is not None:
                progress(done, paired.a.count)

    def _match(
        self,
        pair: LayerPair,
        rows: list[Row],
        a: LayerFactors,
        b: LayerFactors,
        forms: list[AnyFloats],
        norms: list[list[float]],
    ) -> None:
        """Assign the heads of A to those of B on the reduced dimensions, then take the cosines on all of them."""
        matched = list(zip(*(side.tolist() for side in best_assignment(np.abs(cosine_matrix(*forms)))), strict=True))
        by_label = {(i, j): row["cosine"] for (_, i, j), row in zip(pair.heads, rows[1:], strict=True)}
        others = [match for match in matched if by_label.get(match) is None]
        found = head_cosines(a, b, others, [(norms[0][i], norms[1][j]) for i, j in others])
        cosines = by_label | dict(zip(others, found, strict=True))
        # A head that is zero in one model alone has nothing in common with its match; two zero heads say nothing.
        in_one = {(i, j) for i, j in matched if (norms[0][i] > 0) != (norms[1][j] > 0)}
        values = np.array([0.0 if match in in_one else cosines[match] for match in matched])
        self.cosines.append(float(np.nanmean(np.abs(values))) if not np.isnan(values).all() else float("nan"))
        match_of = dict(matched)
        for (_, i, _), row in zip(pair.heads, rows[1:], strict=True):
            if i in match_of:
                row["match"] = pair.b.head_numbers[match_of[i]]
                row["match_cosine"] = null_if_nan(cosines[i, match_of[i]])

    def _note_unpaired(self, pair: LayerPair) -> None:
        """Note the heads of either layer that the other one does not have."""
        unknown = {side for side, weights in (("a", pair.a), ("b", pair.b)) if not weights.heads_known}
        self.without_heads |= unknown
        if unknown:
            return
        paired = {number for number, _, _ in pair.heads}
        for side, labels in ((pair.a, self.only_a), (pair.b, self.only_b)):
            labels += [f"L{pair.a.layer}H{number}" for number in side.head_numbers if number not in paired]

    def notes(self, a: str, b: str) -> list[str]:
        """Return remarks about heads that only one of the models has, and forms that only one model has as zero."""
        notes = [
            f"Heads of {has} without a counterpart in {lacks}: {first_names(labels, SHOWN)}"
            for labels, has, lacks in ((self.only_a, a, b), (self.only_b, b, a))
            if labels
        ]
        if self.without_heads:
            names = " and ".join(dict.fromkeys({"a": a, "b": b}[side] for side in sorted(self.without_heads)))
            notes.append(
                f"Only layers are compared: the number of heads of {names} is not known (num_heads, --num-heads)"
            )
        zero = [form_label(row) for row in self.rows if row["change"] is None]
        if zero:
            notes.append(f"Forms that are zero in {a}, but not in {b}: {first_names(zero, SHOWN)}")
        return notes

    def _keep(self, b: LayerFactors, forms: list[AnyFloats]) -> None:
        """Keep the reduced forms of the chosen heads and, for an alignment, the factors of B."""
        assert self.shape is not None
        of_a, of_b = (side[:, self.shape.heads(side.shape[1])].copy() for side in forms)
        self.reduced.append((of_a, of_b))
        if self.full_width:
            heads = self.shape.heads(len(b.query))
            self.layers.append(FullWidthLayer(of_a, b.query[heads].mT, b.key[heads // b.group_size].mT))


def is_usable(pair: LayerPair, width: int) -> bool:
    """Return whether one permutation of the basis acts on both sides of the forms: self-attention of this width."""
    return not pair.a.cross and pair.a.query.shape[1] == pair.a.key.shape[1] == width
