"""Organised networks as text, and figures that draw every shape and every kind of token."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attngeo.organization import NetworkTensor, Tree, expand, organize, softmax_invariance
from attngeo.show.canvas import BLUE, ORANGE, save_figure, token_label
from attngeo.show.matrix_figures import slices_figure
from attngeo.show.organization_figures import (
    coordinate_pairs,
    head_coordinates,
    heads_figure,
    invariance_figure,
    sparsity_figure,
    tree_figure,
    trees_figure,
)
from attngeo.show.organization_text import compact_labels, organization_summary, tree_text


def png_pixels(figure: Any) -> Any:
    """Return the figure as a matrix of grey values, read back from the PNG that is saved."""
    from PIL import Image

    picture = io.BytesIO()
    save_figure(figure, picture)
    with Image.open(picture) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("L"))


def test_tree_text() -> None:
    tree = Tree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 2, 2], [0, 1, 2, 3, 4, 5]])
    labels = ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    assert tree_text(tree, labels, levels=[1, 2]).splitlines() == [
        "6",
        "├─ 4",
        "│  ├─ 3  L0H0,2 L1H0",
        "│  └─ 1  L0H1",
        "└─ 2  L1H1,2",
    ]
    assert tree_text(tree, labels, levels=[1]).splitlines() == ["6", "├─ 4  L0H0,1,2 L1H0", "└─ 2  L1H1,2"]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_tree_text_names_every_element_once(n: int) -> None:
    text = tree_text(Tree.dyadic(n), [f"x{element}y" for element in range(n)])
    assert all(text.count(f"x{element}y") == (1 if n > 3 else text.count("x0y")) for element in range(n))


def test_compact_labels() -> None:
    assert compact_labels(["L10H2", "L2H11", "L2H3", "L2H0"]) == "L2H0,3,11 L10H2"
    assert compact_labels(["5", "1"]) == "1 5"


def test_smallest_folders() -> None:
    tree = Tree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 2, 2], [0, 1, 0, 3, 2, 2], [0, 1, 2, 3, 4, 5]])
    assert tree.smallest_folders() == [[0, 2], [4, 5]]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 1), (1, 4, 5), (3, 2), (9, 40, 90)])
def test_every_shape_can_be_summarised_and_drawn(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    organization = organize(values)
    expansion = expand(organization.values, organization.trees)
    comparison = expansion.compare()
    text = organization_summary(organization, expansion, comparison)
    assert " × ".join(map(str, shape)) in text
    assert str(comparison) in text and "l1/l2: l1 norm of the coefficients" in text
    assert ("changed no tree" if organization.settled else "still changed a tree") in text
    assert max(len(line) for line in text.splitlines() if "  " in line) <= 80  # rows of tables and trees
    figures = [slices_figure(organization), trees_figure(organization), sparsity_figure(comparison)]
    if len(shape) == 3:
        figures.append(heads_figure(organization))
    for figure in figures:
        pixels = png_pixels(figure)
        assert pixels.shape == tuple(np.round(figure.dpi * figure.get_size_inches()).astype(int)[::-1])
        assert pixels.std() > 1 and pixels.max() == 255  # something is drawn on white


def test_heads_are_coloured_by_their_layer() -> None:
    """Also in the second panel, which leaves out heads that lie far from all others."""
    heads = tuple(f"L{head // 4}H{head % 4}" for head in range(60))
    tensor = NetworkTensor(np.random.default_rng(0).random((4, 4, 60)), heads=heads)
    organization = organize(tensor, iterations=1, refine=False)
    place = np.append(12.0, np.linspace(0, 5, 59))  # the first head is unlike any other
    affinity = np.exp(-np.abs(place[:, None] - place) / 5)
    organization = replace(organization, affinities=(*organization.affinities[:2], affinity))
    points = head_coordinates(organization)
    axes = heads_figure(organization).axes
    (_, everyone), (_, central) = coordinate_pairs(points)
    assert everyone.all() and 0 < central.sum() < 60 and not central[0]
    for ax, ((first, second), inside) in zip(axes, coordinate_pairs(points), strict=False):
        (dots,) = ax.collections
        np.testing.assert_allclose(dots.get_offsets(), points[inside][:, [first, second]])
        assert dots.get_array().tolist() == [head // 4 for head in np.flatnonzero(inside)]


def test_figures_that_beat_their_control_are_blue() -> None:
    values = np.random.default_rng(1).random((10, 10, 5))
    report = softmax_invariance(values, bootstrap=40)
    assert {contrast.beats_control for contrast in report.contrasts} == {False, True}
    left, right = invariance_figure(report).axes
    drawn = [line for line in left.lines if len(line.get_xdata()) == 1]
    controls, own = drawn[::2], drawn[1::2]
    for contrast, control, dot in zip(report.contrasts, controls, own, strict=True):
        assert (control.get_xdata()[0], dot.get_xdata()[0]) == (contrast.control, contrast.value)
        assert dot.get_color() == (BLUE if contrast.beats_control else ORANGE)
    for dots, heads in zip(right.collections, (report.heads_control, report.heads), strict=True):
        expected = [(head.exponent.exponent, head.residual.exponent) for head in heads]
        np.testing.assert_allclose(dots.get_offsets(), expected)


def test_the_strips_of_a_tree_are_coloured_by_the_mean_position_of_their_folder() -> None:
    tree = Tree([[0] * 4, [0, 1, 0, 1], [0, 1, 2, 3]])
    (ax, _) = tree_figure(tree).axes
    assert np.asarray(ax.images[0].get_array()).tolist() == [[1.5] * 4, [1, 1, 2, 2], [0, 2, 1, 3]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]


def test_tokens_with_dollar_signs_and_missing_glyphs_are_drawn() -> None:
    tokens = ("$", "$x$", "Ġthe", "▁of", "深", "Ċ", "##ing", "averyverylongtoken")
    assert token_label("Ġthe") == "the" and token_label("▁") == "␣"
    assert token_label("averyverylongtoken") == "averyverylo…"
    values: Any = np.random.default_rng(0).normal(size=(8, 8, 4))
    organization = organize(NetworkTensor(values, queries=tokens, keys=tokens))
    for figure in (slices_figure(organization), trees_figure(organization)):
        labels = {label.get_text() for ax in figure.axes for label in ax.get_xticklabels()}
        assert {r"\$", r"\$x\$", "the", "of", "深", "⏎", "##ing", "averyverylo…"} <= labels
        save_figure(figure, io.BytesIO())
