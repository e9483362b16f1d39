"""What every section has in common: valid plotly, JSON without NaN, escaped text, no colours of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from attngeo.data import bundled, training
from attngeo.show.page import Section
from attngeo.show.page.sections import (
    comparison_section,
    description,
    head_forms_section,
    head_map_section,
    head_tree_section,
    invariance_section,
    maps_section,
    model_map_section,
    plane_section,
    pruning_section,
    rotary_section,
    scores_section,
    sparsity_section,
    training_section,
)
from attngeo.show.page.sections.description import (
    LINE,
    Panel,
    escaped,
    in_lines,
    rounded,
    short_name,
    stack_name,
)
from attngeo.weights.scoring import head_nulls, layer_nulls, list_published
from attngeo.weights.scoring.form import extreme_heads, head_forms

HOSTILE = '<img src=x onerror="alert(1)"></script>%{x}&'


def all_sections(results: dict[str, Any], name: str = "") -> list[Section]:
    """Return every section; models are called `name` where it is given."""
    table = results["pair_scores"] + results["smollm2_scores"]
    frame, frequencies = table.frame, table.frequencies
    summary, curves, forms = table.summary(), results["smollm2_curves"], results["forms"]
    plan, losses = results["pruning"]
    comparison, models, report = results["pair_comparison"], results["three_models"], results["encoder_invariance"]
    organization = results["minilm_organization"]
    runs = {"encoder": training("encoder")}
    if name:
        frame, frequencies, summary = (one.with_columns(model=pl.lit(name)) for one in (frame, frequencies, summary))
        curves, losses, plan = replace(curves, model=name), replace(losses, model=name), replace(plan, notes=(name,))
        forms = tuple(replace(form, model=name) for form in forms)
        comparison, models = replace(comparison, a=name, b=name), replace(models, names=(name,) * 3)
        heads = tuple(f"{name}{head}" for head in organization.tensor.heads)
        organization = replace(organization, tensor=replace(organization.tensor, heads=heads))
        report = replace(report, heads=tuple(replace(head, head=name) for head in report.heads))
        runs = {name: runs["encoder"]}
    return [
        scores_section(frame, layer_nulls(frame), head_nulls(frame)),
        maps_section(frame),
        plane_section(summary, list_published(caution=False)),
        rotary_section(frequencies, [curves]),
        head_forms_section(forms),
        head_tree_section(organization),
        head_map_section(organization),
        sparsity_section(results["minilm_sparsity"]),
        invariance_section(report),
        training_section(runs),
        pruning_section(plan, losses),
        comparison_section(comparison),
        model_map_section(models),
    ]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, Any]:
    names = (
        *("pair_scores", "smollm2_scores", "smollm2_curves", "minilm_organization", "minilm_sparsity"),
        *("encoder_invariance", "pruning", "pair_comparison", "three_models"),
    )
    found = {name: request.getfixturevalue(name) for name in names}
    frame = found["pair_scores"].frame.filter(stack="encoder")
    return found | {"forms": head_forms(bundled("encoder"), extreme_heads(frame))}


@pytest.fixture(scope="module")
def sections(results: dict[str, Any]) -> list[Section]:
    return all_sections(results)


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inside in value.items():
            yield from strings(key)
            yield from strings(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from strings(inside)


def test_every_section_is_readable_and_has_figures(sections: list[Section]) -> None:
    for section in sections:
        assert section.figures, section.id
        assert 2 <= len(re.findall(r"[.!?](?: |$)", section.reading)) <= 6, section.reading
        for figure in section.figures:
            assert re.fullmatch(r"[a-z0-9-]+", figure.id)
            assert re.fullmatch(r"[A-Z].*[.?]", figure.label)
            assert len({len(values) for values in figure.table.values()}) == 1, figure.id
            assert any(trace.get("z") or [x for x in trace["x"] if x is not None] for trace in figure.plotly["data"])
    ids = [figure.id for section in sections for figure in section.figures] + [section.id for section in sections]
    assert len(ids) == len(set(ids))


def test_descriptions_are_plain_json_and_small(sections: list[Section]) -> None:
    for section in sections:
        for figure in section.figures:
            text = json.dumps([figure.plotly, figure.table], allow_nan=False)
            assert len(text) < 300_000, figure.id
            numbers = re.findall(r"(?<![\w.#-])-?\d+\.\d{6,}", text)
            assert not [number for number in numbers if len(number.strip("-0.")) > 8], figure.id


def test_plotly_accepts_every_description(sections: list[Section]) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for section in sections:
        for figure in section.figures:
            graph_objects.Figure(json.loads(json.dumps(figure.plotly)))  # raises for an unknown setting


def test_the_page_decides_on_the_colours_of_text_and_grid(sections: list[Section]) -> None:
    for section in sections:
        for figure in section.figures:
            layout = figure.plotly["layout"]
            assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
            texts = [layout["font"], *(note["font"] for note in layout["annotations"])]
            assert not [text for text in texts if "color" in text]
            axes = [value for key, value in layout.items() if re.fullmatch(r"[xy]axis\d*", key)]
            assert not [key for axis in axes for key in axis if "color" in key]


def test_titles_fit_the_width_of_a_phone(sections: list[Section]) -> None:
    for section in sections:
        for figure in section.figures:
            for note in figure.plotly["layout"]["annotations"]:
                for line in re.sub("</?b>", "", note["text"]).split("<br>"):
                    assert len(line) <= 38, note["text"]


def test_text_from_results_cannot_be_markup(results: dict[str, Any]) -> None:
    for section in all_sections(results, HOSTILE):
        for figure in section.figures:
            for text in strings(figure.plotly):
                assert "<img" not in text and "<script" not in text and "</script" not in text, (figure.id, text)
                shown = re.sub(r"%\{[\w:.~,]+\}", "", text) if text.count("%{") > 1 else text
                assert "%{x}&" not in shown, (figure.id, text)


def test_numbers_have_five_significant_digits() -> None:
    assert rounded([1 / 3, None, np.inf, -np.inf, np.nan, 123456.789]) == [0.33333, None, None, None, None, 123460.0]
    assert rounded(np.array([[1e-20 / 3], [2]])) == [[3.3333e-21], [2.0]]
    assert rounded([]) == []


def test_names_are_short_and_escaped() -> None:
    assert escaped("a<b>&%{y}") == "a&lt;b&gt;&amp;%\u200b{y}"
    assert short_name("/a/b/c/") == "b/c"
    assert stack_name("org/encoder", "encoder") == "org/encoder"


@pytest.mark.parametrize(
    "name",
    ["x" * 80, "org/name", "a-" * 60, "word " * 20, "..//__--", "é" * 34 + "-" * 35, "llm/Smol-135M.Q4_1.gguf", " "],
)
def test_long_names_are_whole_and_in_lines_of_a_phone(name: str) -> None:
    lines = in_lines(name).split("<br>")
    assert max(map(len, lines)) <= LINE
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_lines_are_escaped_after_they_are_broken() -> None:
    assert in_lines("<" * 40) == "&lt;" * 34 + "<br>" + "&lt;" * 6


def test_a_wide_page_may_place_panels_side_by_side() -> None:
    panels = [Panel("one", []), Panel("two<br>lines", []), Panel("three", [])]
    stacked, wide = (description.figure(panels, height=200, beside=beside) for beside in (1, 2))
    assert "grid" not in stacked and wide["layout"] == stacked["layout"]
    assert wide["grid"] == {"panels": 3, "beside": 2, "height": 200, "gap": 103}
