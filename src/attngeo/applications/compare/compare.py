"""`compare`: what changed between two models, are they related, and how far apart are they."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.compare.alignment import FullWidthLayer, TokenEmbeddings, relation_by_alignment
from attngeo.applications.compare.change import (
    LayerPair,
    PairedLayers,
    change_frame,
    change_rows,
    head_cosines,
    pair_layers,
    widths,
)
from attngeo.applications.compare.comparison import ModelComparison
from attngeo.applications.compare.distance import (
    captured_geometry,
    network_distance,
    profile_differences,
    score_profiles,
)
from attngeo.applications.compare.relation import (
    DRAWS,
    ReducedShape,
    Relation,
    best_assignment,
    cosine_matrix,
    has_fixed_positions,
    reduced_forms,
    relation_by_permutation,
)
from attngeo.arguments import whole_number
from attngeo.arrays import AnyFloats
from attngeo.errors import InputError
from attngeo.io.names import first_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import shared_cores
from attngeo.organization.check_input import check_inputs
from attngeo.weights.layout.families import family
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.layer import LayerFactors
from attngeo.weights.scoring.score_table import Row, form_label, null_if_nan
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from attngeo.organization.inputs import SingleInput

NEEDS_INPUTS = "inputs (--text, --text-file) are needed to measure their distance"


@accepts_progress_bar
def compare(
    a: CheckpointRef,
    b: CheckpointRef,
    *,
    inputs: SingleInput | Sequence[SingleInput] | None = None,
    align: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    truncate: bool = False,
    stack: str | Collection[str] | None = None,
    num_heads: int | None = None,
    unproven: bool = False,
    progress: Progress | bool | None = None,
) -> ModelComparison:
    """Return what changed from `a` to `b`, whether they are related and, on `inputs`, how far apart they are.

    The first two questions are answered from the query and key weights, read one layer at a time; no model is built.
    For the third, both models are run on the inputs.

    a, b:      as in `score`: folders, files, hub ids, modules (with their low-rank adapters) or state dicts
    inputs:    texts, images or sounds, as in `capture`
    align:     before the relation is tested, match the hidden dimensions of `b` to those of `a` by their token
               embeddings: for a model whose dimensions were permuted (with RMSNorm, also sign-flipped)
    draws:     random permutations of the basis, at least 99; with `align`, tokens are shuffled 99 times instead
    seed:      of the reduced shape and of the null
    truncate:  shorten inputs that are longer than the window of a model instead of raising an error
    stack:     only these stacks; one of them where there are inputs
    num_heads: the number of heads, where no transformers config states it
    unproven:  accept a layout that has never been checked against a live model of its type
    progress:  called with (layers compared, all layers); True draws a progress bar

    >>> encoder = attngeo.bundled("encoder")
    >>> attngeo.compare(encoder, encoder).words()[0]
    'Changed: nothing, the query and key weights of ... are identical.'
    """
    check_options(draws, seed)
    options: dict[str, Any] = {"stack": stack, "num_heads": num_heads, "unproven": unproven}
    weights = weights_of(a), weights_of(b)
    with open_layers(weights[0], **options) as layers_a, open_layers(weights[1], **options) as layers_b:
        if inputs is not None and (stack is None or isinstance(stack, str)):
            check_inputs((a, b), inputs, stack=stack, truncate=truncate)
        call = progress if callable(progress) else None
        comparison = compare_layers(
            layers_a, layers_b, has_inputs=inputs is not None, align=align, draws=draws, seed=seed, progress=call
        )
    if inputs is None:
        return comparison
    geometries = [captured_geometry(ref, inputs, stack=stack, truncate=truncate) for ref in (a, b)]
    profiles = tuple(score_profiles(ref, **options) for ref in weights)
    distance = network_distance(geometries[0], geometries[1], seed=seed, profiles=profile_differences(*profiles))
    return replace(comparison, distance=distance)


def check_options(draws: int, seed: int) -> None:
    """Raise InputError for a bad seed, or for so few draws that no p-value could reach the level of the verdict."""
    if whole_number(draws, "draws", None) < 99:
        raise InputError(f"draws is {draws}, expected at least 99")
    whole_number(seed, "seed")


def weights_of(ref: CheckpointRef) -> CheckpointRef:
    """Return a live module as a checkpoint whose weights include low-rank adapters; anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(ref, torch.nn.Module):
        from attngeo.live.checkpoint import LiveCheckpoint

        return LiveCheckpoint(ref, saved_names=True)
    return ref


def compare_layers(a: Layers, b: Layers, *, has_inputs: bool, **options: Any) -> ModelComparison:
    """Return the answers to the first two questions; none where the layers cannot be paired but there are inputs.

    options: as in `compare_weights`
    """
    try:
        paired = pair_layers(a, b)
    except InputError as error:
        if not has_inputs:
            raise InputError(f"{error}; {NEEDS_INPUTS}") from None
        return ModelComparison(a.model, b.model, change_frame([]), Relation.none(str(error)))
    return compare_weights(paired, **options)


def compare_weights(
    paired: PairedLayers, *, align: bool = False, draws: int = DRAWS, seed: int = 0, progress: Progress | None = None
) -> ModelComparison:
    """Return the answers to the first two questions for layers that `pair_layers` has paired."""
    a, b = paired.a, paired.b
    sizes = [widths(a, layer) for layer in a.unread if not layer.cross]
    usable = Counter(query for query, key in sizes if query == key)
    width = usable.most_common(1)[0][0] if usable else 0
    shape = ReducedShape.draw(width, usable[width], seed) if usable else None
    # Read before the layers, so that a missing vocabulary is reported at once.
    embeddings = None
    if align and shape is not None:
        embeddings = TokenEmbeddings.read(a.checkpoint, b.checkpoint, width, shape.dimensions)
    collected = WeightsPass(shape, width, full_width=embeddings is not None)
    with shared_cores():
        collected.run(paired, progress)
        why = _no_verdict(paired, collected)
        flips = all(_is_rms(layers) for layers in (a, b))
        if why is not None:
            related = Relation.none(why)
        elif embeddings is None:
            related = relation_by_permutation(collected.reduced, collected.cosine, draws=draws, seed=seed, flips=flips)
        else:
            related = relation_by_alignment(collected.layers, embeddings, seed=seed, flips=flips)
    left_out = [f"{layers.model}: {remark}" for layers in (a, b) for remark in layers.left_out]
    notes = (*paired.notes, *collected.notes(a.model, b.model), *left_out)
    return ModelComparison(a.model, b.model, change_frame(collected.rows), related, None, notes)


def _no_verdict(paired: PairedLayers, collected: WeightsPass) -> str | None:
    """Return why the relation of the models cannot be tested; None where it can."""
    if not paired.same_depth:
        return "the models differ in depth, so their layers cannot be paired"
    if not collected.reduced:
        return "no self-attention layers of one width to test"
    for layers in (paired.a, paired.b):
        if has_fixed_positions(layers.checkpoint.config):
            pinned = "has fixed sinusoidal positions, which give unrelated models a common basis"
            return f"{layers.model} {pinned}"
    return None


def _is_rms(layers: Layers) -> bool:
    """Return whether every norm before the attention is known to be an RMSNorm, which allows sign flips."""
    rules = family(str((layers.checkpoint.config or {}).get("model_type", ""))).norms
    return bool(rules) and not any(rule["centred"] for rule in rules)


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
