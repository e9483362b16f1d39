"""`compare` and `compare_all`: what changed between two models, are they related, how far apart are two or several."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.compare.change import (
    COLUMNS,
    Form,
    LayerPair,
    PairedLayers,
    change_rows,
    cosine,
    pair_layers,
    widths,
)
from attngeo.applications.compare.comparison import FORMS, GEOMETRY, ModelComparison, ModelMap, Pair
from attngeo.applications.compare.distance import (
    HEADS,
    HeadGeometry,
    fused_gromov_wasserstein,
    network_distance,
    with_profiles,
)
from attngeo.applications.compare.relation import (
    DRAWS,
    Chosen,
    ReducedShape,
    Relation,
    TokenEmbeddings,
    best_assignment,
    has_fixed_positions,
    permuted_statistics,
    relation_by_alignment,
    unit_forms,
)
from attngeo.arguments import whole_number
from attngeo.arrays import AnyFloats, Ints
from attngeo.errors import InputError
from attngeo.io.archive import states_options
from attngeo.io.names import first_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.tables import table_of
from attngeo.io.threads import each, shared_cores
from attngeo.organization.capture import check_inputs
from attngeo.weights.layout.facts import family
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.score_table import Row, form_label, null_if_nan
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from attngeo.organization.inputs import SingleInput

SHOWN = 10  # heads that a note names
NEEDS_INPUTS = "inputs (--text, --text-file) are needed to measure their distance"


@accepts_progress_bar
@states_options
def compare(
    a: CheckpointRef,
    b: CheckpointRef,
    *,
    inputs: SingleInput | Sequence[SingleInput] | None = None,
    align: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    truncate: bool = False,
    stack: str | None = None,
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
    stack:     only this stack
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
        if inputs is not None:
            check_inputs((a, b), inputs, stack=stack, truncate=truncate)
        call = progress if callable(progress) else None
        comparison = compare_layers(
            layers_a, layers_b, has_inputs=inputs is not None, align=align, draws=draws, seed=seed, progress=call
        )
    if inputs is None:
        return comparison
    geometries = [HeadGeometry.captured(ref, inputs, stack=stack, truncate=truncate) for ref in (a, b)]
    distance = network_distance(*geometries, seed=seed)
    return replace(comparison, distance=with_profiles(distance, *weights, **options))


@accepts_progress_bar
@states_options
def compare_all(
    models: Iterable[Any],
    *,
    inputs: SingleInput | Sequence[SingleInput] | None = None,
    align: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    truncate: bool = False,
    stack: str | None = None,
    num_heads: int | None = None,
    unproven: bool = False,
    progress: Progress | bool | None = None,
) -> ModelMap:
    """Return the distances of all pairs of models: of their head geometries on `inputs`, otherwise of their forms.

    The relation of each pair is tested where their forms can be compared. Options as in `compare`; `progress` is
    called with (pairs done, all pairs).

    >>> encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    >>> found = compare_all([encoder, decoder, encoder], draws=99)
    >>> [round(pair.distance, 2) for pair in found.pairs]
    [0.98, 0.0, 0.98]
    """
    models = list(models)
    if len(models) < 2:
        raise InputError(f"{len(models)} model, expected at least two to compare")
    check_options(draws, seed)
    options: dict[str, Any] = {"stack": stack, "num_heads": num_heads, "unproven": unproven}
    geometries = None
    if inputs is not None:
        check_inputs(models, inputs, stack=stack, truncate=truncate)
        geometries = [HeadGeometry.captured(ref, inputs, stack=stack, truncate=truncate) for ref in models]
        geometries = [geometry.subset(HEADS, seed) for geometry in geometries]
    numbered = [(i, j) for i in range(len(models)) for j in range(i + 1, len(models))]
    names: dict[int, str] = {}
    weights = [weights_of(ref) for ref in models]
    pairs: list[Pair] = []
    notes: dict[str, None] = {}  # in order, each once
    for done, (i, j) in enumerate(numbered, 1):
        with open_layers(weights[i], **options) as a, open_layers(weights[j], **options) as b:
            names |= {i: a.model, j: b.model}
            try:
                compared = compare_layers(a, b, has_inputs=geometries is not None, align=align, draws=draws, seed=seed)
                related = compared.related
                notes |= dict.fromkeys(compared.notes)
            except InputError as error:
                if geometries is None:
                    raise
                related = Relation.none(str(error))
        if geometries is not None:
            g, h = geometries[i], geometries[j]
            distance = fused_gromov_wasserstein(g.affinity, h.affinity, g.depth, h.depth)
        elif related.cosine is None or np.isnan(related.cosine):
            raise InputError(f"{names[i]} and {names[j]}: {related.verdict}; {NEEDS_INPUTS}")
        else:
            distance = max(0.0, 1 - related.cosine)
        pairs.append(Pair(i, j, distance, related.p_value, related.verdict))
        if callable(progress):
            progress(done, len(numbered))
    measure = FORMS if geometries is None else GEOMETRY
    return ModelMap(tuple(names[i] for i in range(len(models))), measure, tuple(pairs), tuple(notes))


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


def compare_layers(
    a: Layers,
    b: Layers,
    *,
    has_inputs: bool,
    align: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> ModelComparison:
    """Return the answers to the first two questions; none where the layers cannot be paired but there are inputs."""
    try:
        paired = pair_layers(a, b)
    except InputError as error:
        if not has_inputs:
            raise InputError(f"{error}; {NEEDS_INPUTS}") from None
        return ModelComparison(a.model, b.model, table_of([], COLUMNS), Relation.none(str(error)))
    a, b = paired.a, paired.b
    shape = _reduced_shape(a, seed)
    # Read before the layers, so that a missing vocabulary is reported at once.
    embeddings = TokenEmbeddings.read(a.checkpoint, b.checkpoint, shape) if align and shape is not None else None
    collected = WeightsPass(shape, all_dimensions=embeddings is not None)
    with shared_cores():
        for done, pair in enumerate(paired, 1):
            collected.add(pair)
            if progress is not None:
                progress(done, a.count)
        flips = all(_is_rms(layers) for layers in (a, b))
        if (why := _no_verdict(paired, collected)) is not None:
            related = Relation.none(why)
        elif embeddings is not None:
            related = relation_by_alignment(collected.chosen, embeddings, seed=seed, flips=flips)
        else:
            forms = [(of_a, unit_forms(query, key)) for of_a, query, key in collected.chosen]
            null = permuted_statistics(forms, draws, seed, flips)
            related = Relation.judged(forms, null, cosine=collected.cosine)
    left_out = [f"{layers.model}: {remark}" for layers in (a, b) for remark in layers.left_out]
    notes = (*paired.notes, *collected.notes(a, b), *left_out)
    return ModelComparison(a.model, b.model, table_of(collected.rows, COLUMNS), related, None, notes)


def _reduced_shape(layers: Layers, seed: int) -> ReducedShape | None:
    """Return the shape for the most frequent width of self-attention; None where there is none."""
    sizes = [widths(layers, layer) for layer in layers.unread if not layer.cross]
    usable = Counter(query for query, key in sizes if query == key).most_common(1)
    return ReducedShape.draw(*usable[0], seed) if usable else None


def _no_verdict(paired: PairedLayers, collected: WeightsPass) -> str | None:
    """Return why the relation of the models cannot be tested; None where it can."""
    if not paired.same_depth:
        return "the models differ in depth, so their layers cannot be paired"
    if not collected.chosen:
        return "no self-attention layers of one width to test"
    for layers in (paired.a, paired.b):
        if has_fixed_positions(layers.checkpoint.config):
            pinned = "has fixed sinusoidal positions, which give unrelated models a common basis"
            return f"{layers.model} {pinned}"
    return None


def _is_rms(layers: Layers) -> bool:
    """Return whether every norm before the attention is known to be an RMSNorm, which allows sign flips."""
    rules = family(layers.model_type).norms
    return bool(rules) and not any(rule["centred"] for rule in rules)


@dataclass(eq=False)
class WeightsPass:
    """What one pass over the layers of both models collects."""

    shape: ReducedShape | None  # None: no layer has forms that one permutation of the basis acts on
    all_dimensions: bool  # keep those of B, for an alignment
    rows: list[Row] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)  # mean matched |cosine| of the layers that have one
    chosen: list[Chosen] = field(default_factory=list)  # the heads and layers of the shape
    only_a: list[str] = field(default_factory=list)  # labels of heads that B does not have
    only_b: list[str] = field(default_factory=list)
    usable: int = 0  # layers so far that the shape applies to

    @property
    def cosine(self) -> float:
        """Return the mean matched |cosine| over all layers with forms that are not zero; NaN where there is none."""
        return float(np.mean(self.cosines)) if self.cosines else float("nan")

    def add(self, pair: LayerPair) -> None:
        """Compare the two layers."""
        rows, heads_a, heads_b = change_rows(pair)
        self.rows += rows
        shape, square = self.shape, pair.a.query.shape[1] == pair.a.key.shape[1]
        if shape is not None and not pair.a.cross and square and pair.a.query.shape[1] == shape.width:
            forms_a, forms_b = (unit_forms(*_stacked(heads, shape.dimensions)) for heads in (heads_a, heads_b))
            self._match(pair, rows, heads_a, heads_b, best_assignment(np.abs(forms_a.T @ forms_b)))
            if self.usable in shape.layers:
                some_b = [heads_b[head] for head in shape.heads(len(heads_b))]
                factors_b = _stacked(some_b, slice(None) if self.all_dimensions else shape.dimensions)
                self.chosen.append((forms_a[:, shape.heads(len(heads_a))], *factors_b))
            self.usable += 1
        if pair.heads_known:
            paired = {number for number, _, _ in pair.heads}
            for side, labels in ((pair.a, self.only_a), (pair.b, self.only_b)):
                labels += [f"L{pair.a.layer}H{number}" for number in side.head_numbers if number not in paired]

    def _match(
        self, pair: LayerPair, rows: list[Row], heads_a: list[Form], heads_b: list[Form], matched: tuple[Ints, Ints]
    ) -> None:
        """Take the cosines, on all hidden dimensions, of the heads that were matched on the reduced ones."""
        match_of = dict(zip(*(side.tolist() for side in matched), strict=True))
        found = each(lambda i: cosine(heads_a[i], heads_b[match_of[i]]), match_of, heads_a[0].work)
        cosines = dict(zip(match_of, found, strict=True))
        # A head that is zero in one model alone has nothing in common with its match; two zero heads say nothing.
        some = [cosines[i] for i, j in match_of.items() if heads_a[i].norm > 0 or heads_b[j].norm > 0]
        values = [0.0 if np.isnan(value) else abs(value) for value in some]
        if values:
            self.cosines.append(float(np.mean(values)))
        for (_, i, _), row in zip(pair.heads, rows[1:], strict=True):
            if i in match_of:
                row["match"] = pair.b.head_numbers[match_of[i]]
                row["match_cosine"] = null_if_nan(cosines[i])

    def notes(self, a: Layers, b: Layers) -> list[str]:
        """Return remarks about heads that only one of the models has, and forms that only one model has as zero."""
        notes = [
            f"Heads of {has.model} without a counterpart in {lacks.model}: {first_names(labels, SHOWN)}"
            for labels, has, lacks in ((self.only_a, a, b), (self.only_b, b, a))
            if labels
        ]
        unknown = [layers.model for layers in (a, b) if not all(layer.heads_known for layer in layers.unread)]
        if unknown:
            names = " and ".join(dict.fromkeys(unknown))
            notes.append(
                f"Only layers are compared: the number of heads of {names} is not known (num_heads, --num-heads)"
            )
        zero = [form_label(row) for row in self.rows if row["change"] is None]
        if zero:
            notes.append(f"Forms that are zero in {a.model}, but not in {b.model}: {first_names(zero, SHOWN)}")
        return notes


def _stacked(heads: Sequence[Form], dimensions: Ints | slice) -> tuple[AnyFloats, AnyFloats]:
    """Return the queries and the keys of some heads on some hidden dimensions, [n, r, d] each."""
    query = np.stack([head.query[:, dimensions] for head in heads])
    key = np.stack([head.key[:, dimensions] for head in heads])
    return query, key
