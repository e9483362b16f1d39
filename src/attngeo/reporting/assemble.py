"""Results as the sections of a page, in reading order: weights, organised attention, training, applications."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attngeo import show as draw
from attngeo.io.names import joined_names, short_name
from attngeo.organization.tensor import NetworkTensor
from attngeo.reporting.results import Results
from attngeo.show.page import Section, stack_name
from attngeo.show.page.document import Page
from attngeo.show.page.doubts import doubts
from attngeo.weights.scoring.published import list_published
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.scoring.verdict import verdicts

# What is shown of the organised attention of each model: field of the results, function.
_ORGANISED: tuple[tuple[str, Callable[[Any], Section]], ...] = (
    ("organization", draw.attention_section),
    ("organization", draw.head_tree_section),
    ("organization", draw.head_map_section),
    ("sparsity", draw.sparsity_section),
    ("invariance", draw.invariance_section),
)
_OF_HEADS = (draw.head_tree_section, draw.head_map_section)  # which a matrix has not


def page_of(results: Results) -> Page:
    """Return the page of a report."""
    tables = [model.scores for model in results.models if model.scores is not None]
    table = sum(tables[1:], tables[0]) if tables else None
    names = joined_names(dict.fromkeys(filter(None, _names(results)))) or "a network"
    found = () if table is None else verdicts(table.frame, table.model_types)
    called = [stack_name(one.model, one.stack if len(found) > 1 else "") for one in found]
    return Page(
        title=f"Attention geometry of {names}",
        verdicts=tuple((name, one.sentence) for name, one in zip(called, found, strict=True)),
        doubts=() if table is None else doubts(table.frame, found, called),
        about=(*_inputs(results), *(() if table is None else table.notes)),
        sections=(*(() if table is None else _weights(results, table)), *_organised(results), *_others(results)),
    )


def _names(results: Results) -> Iterator[str]:
    yield from (model.name for model in results.models)
    if not results.models:
        for comparison in results.comparisons:
            yield from (short_name(comparison.a), short_name(comparison.b))
        for models in results.maps:
            yield from map(short_name, models.names)


def _inputs(results: Results) -> Iterator[str]:
    """Yield a line on the input that each model was run on."""
    for model in results.models:
        tensor = None if model.organization is None else model.organization.tensor
        if isinstance(tensor, NetworkTensor):
            queries, keys, heads = tensor.shape
            what = f"attention {tensor.stage} of {heads} heads"
            yield f"{model.name}: {what} on an input of {queries} queries and {keys} keys."


def _weights(results: Results, table: ScoreTable) -> Iterator[Section]:
    frame = table.frame
    yield draw.scores_section(frame)
    if frame["head"].null_count() < frame.height:
        yield draw.maps_section(frame)
    yield draw.plane_section(table.summary(), list_published(caution=False))
    curves = [model.curves for model in results.models if model.curves is not None]
    if curves or (table.frequencies is not None and table.frequencies.height):
        yield draw.rotary_section(table.frequencies, curves)
    forms = [form for model in results.models for form in model.forms]
    if forms:
        yield draw.head_forms_section(forms)


def _organised(results: Results) -> Iterator[Section]:
    """Yield the sections of each model on its input; the head tree and map need three axes."""
    views = 0  # sections with the attention of single heads so far
    for number, model in enumerate(results.models, 1):
        view = views if model.organization is not None else 0
        views += model.organization is not None
        for field, function in _ORGANISED:
            value = getattr(model, field)
            if value is None or (function in _OF_HEADS and len(value.trees) < 3):
                continue
            section = replace(_numbered(function(value), number), view=view)
            several = len(results.models) > 1
            yield replace(section, title=f"{section.title}: {model.name}") if several else section


def _others(results: Results) -> Iterator[Section]:
    training = {model.name or "run": model.training for model in results.models if model.training}
    if training:
        yield draw.training_section(training)
    pruned = [model for model in results.models if model.plan is not None or model.losses is not None]
    for number, model in enumerate(pruned, 1):
        yield _numbered(draw.pruning_section(model.plan, model.losses), number)
    for number, comparison in enumerate(results.comparisons, 1):
        yield _numbered(draw.comparison_section(comparison), number)
    for number, models in enumerate(results.maps, 1):
        yield _numbered(draw.model_map_section(models), number)


def _numbered(section: Section, number: int) -> Section:
    """Return one of several sections of a kind with ids of its own; figures have numbers at the end of theirs."""
    if number == 1:
        return section
    figures = tuple(replace(figure, id=f"n{number}-{figure.id}") for figure in section.figures)
    return replace(section, id=f"n{number}-{section.id}", figures=figures)
