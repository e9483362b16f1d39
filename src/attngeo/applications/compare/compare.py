"""`compare`: what changed between two models, are they related, and how far apart are they."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attngeo.applications.compare.change.change_table import change_frame
from attngeo.applications.compare.change.layer_pairs import PairedLayers, pair_layers, widths
from attngeo.applications.compare.comparison import ModelComparison
from attngeo.applications.compare.distance.captured import captured_geometry, profile_differences, score_profiles
from attngeo.applications.compare.distance.network_distance import network_distance
from attngeo.applications.compare.origin.alignment import TokenEmbeddings, relation_by_alignment
from attngeo.applications.compare.origin.fixed_positions import has_fixed_positions
from attngeo.applications.compare.origin.reduced_forms import ReducedShape
from attngeo.applications.compare.origin.relation import DRAWS, Relation, relation_by_permutation
from attngeo.applications.compare.weights_pass import WeightsPass
from attngeo.arguments import whole_number
from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import shared_cores
from attngeo.organization.check_input import check_inputs
from attngeo.weights.layout.families import family
from attngeo.weights.layout.layers import Layers, open_layers
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
