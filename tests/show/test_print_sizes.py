"""Figures fit a column or a page of a paper, with legible letters, as vectors with fonts that publishers accept."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.text import Text

import attngeo
from attngeo import show
from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.organization import organize, planted
from attngeo.weights.scoring.offsets import offset_curves

WIDTHS = (3.3, 7.0)  # inches


@pytest.fixture(scope="module")
def organization() -> Any:
    return organize(planted((16, 12, 8), seed=0)[0])


def curve(methods: int) -> LossCurve:
    points = [
        LossPoint(f"method {number}", heads, heads / 16, refit, 3.0 + 0.1 * heads + number, seed)
        for number in range(methods)
        for heads in (4, 8)
        for refit in (False, True)
        for seed in range(2)
    ]
    return LossCurve("a model with a very long name/" + "x" * 30, "masked tokens", 3.0, tuple(points))


FIGURES: dict[str, Callable[[Any, Any], Any]] = {
    "score": lambda _, __: (
        attngeo.score(attngeo.bundled("encoder")) + attngeo.score(attngeo.bundled("decoder"))
    ).plot(),
    "heads": lambda organization, _: show.heads_figure(organization),
    "slices": lambda organization, _: show.slices_figure(organization),
    "trees": lambda organization, _: show.trees_figure(organization),
    "tree": lambda organization, _: show.tree_figure(organization.trees[0]),
    "sparsity": lambda organization, _: show.sparsity_figure(organization.expand().compare(0)),
    "training": lambda _, __: show.training_figure(attngeo.training.bundled_records("encoder")),
    "pruning": lambda _, __: show.pruning_figure(curve(2)),
    "all criteria": lambda _, __: show.pruning_figure(curve(11)),
    "comparison": lambda _, __: show.comparison_figure(
        attngeo.compare(attngeo.bundled("encoder"), attngeo.bundled("decoder"))
    ),
    "offsets": lambda _, smollm2: show.offset_figure(offset_curves(str(smollm2), layers=[0, 29])),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_or_a_page(name, organization, smollm2):
    figure = FIGURES[name](organization, smollm2)
    assert any(figure.get_size_inches()[0] == pytest.approx(width) for width in WIDTHS)
    assert figure.get_size_inches()[1] < 9.5
    file = io.BytesIO()
    show.save_figure(figure, file, "pdf")
    assert b"/Type3" not in file.getvalue()
    figure.draw_without_rendering()
    sides = [side for ax in figure.axes for side in (ax.xaxis, ax.yaxis)]
    ticks = {label for side in sides for label in side.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            assert 6 <= text.get_fontsize() <= 9, text
            if text not in ticks and text.get_in_layout():  # ticks outside of a panel are not drawn
                box = text.get_window_extent()
                assert box.x0 >= -2 and box.x1 <= figure.bbox.width + 2, text
                assert box.y0 >= -2 and box.y1 <= figure.bbox.height + 2, text


def test_the_legend_says_how_many_seeds_there_are():
    labels = [text.get_text() for text in show.pruning_figure(curve(2)).axes[0].get_legend().get_texts()]
    assert labels == ["method 0 (2 seeds)", "method 1 (2 seeds)"]


def test_letters_of_other_figures_stay_as_they_are():
    import matplotlib

    before = dict(matplotlib.rcParams)
    show.pruning_figure(curve(1))
    assert dict(matplotlib.rcParams) == before
