"""Results as the sections of a page, in reading order: weights, organised attention, training, applications."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attngeo import __version__
from attngeo import show as draw
from attngeo.io.names import joined_names, short_name
from attngeo.organization.tensor import NetworkTensor
from attngeo.reporting.results import ModelResults, Results
from attngeo.show.page.attention import attention_section
from attngeo.show.page.document import AttentionSection, Page, PageVerdict
from attngeo.show.page.doubts import doubts
from attngeo.show.page.section import Section
from attngeo.weights.scoring.published import list_published
from attngeo.weights.scoring.score_table import ScoreTable, head_nulls, layer_nulls
from attngeo.weights.scoring.verdict import verdicts

# What is shown of the organised attention of each model: part of the section's id, field of the results, function.
_ORGANISED: tuple[tuple[str, str, Callable[..., Section]], ...] = (
    ("attention", "organization", attention_section),
    ("head-tree", "organization", draw.head_tree_section),
    ("head-map", "organization", draw.head_map_section),
    ("sparsity", "sparsity", draw.sparsity_section),
    ("invariance", "invariance", draw.invariance_section),
)


def page_of(results: Results, about: tuple[str, ...] = ()) -> Page:
    """Return the page of a report.

    about: lines on what was measured and how
    """
    tables = [model.scores for model in results.models if model.scores is not None]
    table = sum(tables[1:], tables[0]) if tables else None
    names = joined_names(dict.fromkeys(filter(None, _names(results)))) or "a network"
    found = () if table is None else verdicts(table.frame, table.model_types)
    several = len(found) > 1
    called = [_called(verdict.model, verdict.stack if several else "") for verdict in found]
    sections: list[Section] = [] if table is None else list(_weights(results, table))
    views: dict[str, str] = {}
    for number, model in enumerate(results.models, 1):
        own = list(_organised(model, number, several=len(results.models) > 1))
        attention = next((section.id for section in own if isinstance(section, AttentionSection)), None)
        sections += own
        views |= {section.id: attention for section in own if attention is not None}
    sections += _others(results)
    return Page(
        title=f"Attention geometry of {names}",
        verdicts=tuple(PageVerdict(name, one.sentence) for name, one in zip(called, found, strict=True)),
        doubts=() if table is None else doubts(table.frame, found, called),
        about=(*about, *(() if table is None else table.notes)),
        sections=tuple(sections),
        views=views,
        version=__version__,
    )


def _called(model: str, stack: str) -> str:
    """Return how to call a stack in a sentence; a name that ends in the stack's is not repeated."""
    name = short_name(model)
    return name if not stack or name.endswith(stack) else f"{name}, {stack}"


def _names(results: Results) -> Iterator[str]:
    for model in results.models:
        yield model.name
    for comparison in results.comparisons:
        yield from (short_name(comparison.a), short_name(comparison.b)) if not results.models else ()
    for models in results.maps:
        yield from map(short_name, models.names) if not results.models else ()


def _weights(results: Results, table: ScoreTable) -> Iterator[Section]:
    frame = table.frame
    yield draw.scores_section(frame, layer_nulls(frame), head_nulls(frame))
    if frame["head"].null_count() < frame.height:
        yield draw.maps_section(frame)
    yield draw.plane_section(table.summary(), list_published(caution=False))
    curves = [model.curves for model in results.models if model.curves is not None]
    if curves or (table.frequencies is not None and table.frequencies.height):
        yield draw.rotary_section(table.frequencies, curves)
    forms = [form for model in results.models for form in model.forms]
    if forms:
        yield draw.head_forms_section(forms)


def _organised(model: ModelResults, number: int, several: bool) -> Iterator[Section]:
    """Yield the sections of one model on one input; the head tree and map need three axes."""
    for name, field, function in _ORGANISED:
        value: Any = getattr(model, field)
        if value is None or (name.startswith("head") and len(value.trees) < 3):
            continue
        section = function(value, id=_numbered(name, number))
        yield replace(section, title=f"{section.title}: {model.name}") if several else section


def _others(results: Results) -> Iterator[Section]:
    training = {model.name or "run": model.training for model in results.models if model.training}
    if training:
        yield draw.training_section(training)
    pruned = [model for model in results.models if model.plan is not None or model.losses is not None]
    for number, model in enumerate(pruned, 1):
        yield draw.pruning_section(model.plan, model.losses, id=_numbered("pruning", number))
    for number, comparison in enumerate(results.comparisons, 1):
        yield draw.comparison_section(comparison, id=_numbered("comparison", number))
    for number, models in enumerate(results.maps, 1):
        yield draw.model_map_section(models, id=_numbered("models", number))


def _numbered(name: str, number: int) -> str:
    """Return the id of the section of one of several models; figures have numbers at the end of theirs."""
    return name if number == 1 else f"n{number}-{name}"


def input_line(model: ModelResults) -> str | None:
    """Return a line on the input that a model was run on, or None."""
    tensor = None if model.organization is None else model.organization.tensor
    if not isinstance(tensor, NetworkTensor):
        return None
    queries, keys, heads = tensor.shape
    return f"{model.name}: attention {tensor.stage} of {heads} heads on an input of {queries} queries and {keys} keys."
