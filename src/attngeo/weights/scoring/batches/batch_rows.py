"""The rows of layers that are scored in batches; the device scores one batch while the rows of the last are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attngeo.weights.scoring.batches.layer_batch import LaterLayerScores, LayerBatch
from attngeo.weights.scoring.batches.repaired import RepairedBatches
from attngeo.weights.scoring.columns.layer_rows import add_folded, add_gaussian_null, head_rows, layer_row
from attngeo.weights.scoring.columns.requested import Requested
from attngeo.weights.scoring.device.batched import BatchedScores
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.rows import Row


def rows_of_batches(
    batches: Iterable[LayerBatch], requested: Requested, folded: Figures, pairs: list[Row]
) -> Iterator[list[Row]]:
    """Yield the rows of each layer, all columns filled but those that wait for the last layer.

    folded: what is computed of folded forms
    pairs:  gets the rows of rotary pairs
    """
    repaired = RepairedBatches(requested.heads)
    waiting: Callable[[], list[list[Row]]] | None = None
    for batch in batches:
        started = _start(batch, requested, folded, pairs, repaired)
        if waiting is not None:
            yield from waiting()
        waiting = started
    fill_first = repaired.close()
    if waiting is not None:
        yield from waiting()
    fill_first()


def _start(
    batch: LayerBatch, requested: Requested, folded: Figures, pairs: list[Row], repaired: RepairedBatches
) -> Callable[[], list[list[Row]]]:
    """Let the device score a batch; return a function that waits for the scores and returns the rows of each layer."""
    weights = batch.layers[0]
    figures = requested.figures(weights)
    together = BatchedScores()
    forms = [_start_forms(together, batch, figures, requested)]
    if weights.norm is not None and not weights.cross:
        forms.append(_start_forms(together, batch.folded(), folded, requested))
    fill = repaired.start(together, batch, figures.rotary) if requested.nulls else None
    together.compute()
    layers = batch.layers

    def rows() -> list[list[Row]]:
        plain, *others = [scores() for scores in forms]
        found = [
            [layer_row(requested.model, one, of_layer), *head_rows(requested.model, one, of_heads, figures, pairs)]
            for one, (of_layer, *of_heads) in zip(layers, plain, strict=True)
        ]
        for scores in others:
            for new, of_layer in zip(found, scores, strict=True):
                add_folded(new, of_layer)
        if fill is not None:
            for one, new in zip(layers, found, strict=True):
                add_gaussian_null(new, one, figures.rotary)
            fill(found)
        return found

    return rows


def _start_forms(
    together: BatchedScores, batch: LayerBatch, figures: Figures, requested: Requested
) -> LaterLayerScores:
    """Add the form and the heads of each layer to `together`; return a function that waits for the scores."""
    of_layers = batch.layer_scores(together, figures)
    of_heads = batch.head_scores(together, figures) if requested.heads_of(batch.layers[0]) else None

    def scores() -> list[list[FormScores]]:
        forms = of_layers()
        return forms if of_heads is None else [[*a, *b] for a, b in zip(forms, of_heads(), strict=True)]

    return scores
