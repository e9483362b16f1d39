"""Organised networks as text, as figures and as sections of a page, for every shape and every kind of token."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attngeo.charts import BLUE, ORANGE
from attngeo.organization import NetworkTensor, Organization, Tree, organize, softmax_invariance
from attngeo.show import (
    head_map_section,
    head_tree_section,
    invariance_section,
    organization_summary,
    save_figure,
    sparsity_section,
    tree_text,
)
from attngeo.show.page.attention import attention_data
from tests.show.same import same


def summary(organization: Organization, permuted: bool = False) -> str:
    expansion = organization.expand()
    return organization_summary(organization, expansion, expansion.compare(permuted=permuted))


# ---- text


def test_a_tree_is_drawn_at_some_of_its_levels_and_a_layer_is_named_once() -> None:
    tree = Tree([[0] * 8, [0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 2, 3, 2], range(8)])
    labels = ("L2H10", "L0H1", "L2H2", "L10H0", "L0H0", "5", "L3H1", "1")
    assert tree_text(tree, labels).splitlines() == [
        "8",
        "├─ 5",
        "│  ├─ 3  L2H2,10 L10H0",
        "│  └─ 2  L0H0,1",
        "└─ 3",
        "   ├─ 2  1 5",
        "   └─ 1  L3H1",
    ]


def test_a_tree_names_every_element_once() -> None:
    text = tree_text(Tree.dyadic(40), [f"x{element}y" for element in range(40)])
    assert all(text.count(f"x{element}y") == 1 for element in range(40))


def test_heads_most_alike_and_of_least_entropy_come_first_and_trees_settle(organization) -> None:
    text = summary(organization)
    section = text.partition("heads that are joined first")[2].partition("\n\n")[0]
    means = [float(mean) for mean in re.findall(r"^  (\d\.\d{3})  \S", section, re.MULTILINE)]
    assert len(means) > 2 and means == sorted(means, reverse=True) and means[0] > means[-1]
    affinity, folders = organization.affinities[2], organization.trees[2].smallest_folders()
    best = max(np.mean([affinity[a, b] for a in inside for b in inside if a < b]) for inside in folders)
    assert means[0] == pytest.approx(best, abs=1e-3)
    entropy, heads = np.asarray(organization.expand().entropy("head", normalised=True)), organization.tensor.heads
    ranked = np.argsort(entropy)
    for title, some in (("least", ranked[:6]), ("most", ranked[::-1][:6])):
        line = next(line for line in text.splitlines() if line.startswith(f"  {title} "))
        assert line.split()[1:] == [word for head in some for word in (heads[head], f"{entropy[head]:.3g}")]
    assert organization.settled and "converged: the last iteration changed no tree" in text
    noise = organize(np.random.default_rng(0).random((14, 12, 10)), iterations=1)
    assert not noise.settled
    assert "ended after 1 iteration; the last one still changed a tree" in summary(noise)


# ---- every shape


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2), (4, 20, 70)])
def test_every_shape_can_be_summarised_and_drawn(shape: tuple[int, ...]) -> None:
    from PIL import Image

    organization = organize(np.random.default_rng(0).normal(size=shape))
    comparison = organization.expand().compare()
    text = organization_summary(organization, organization.expand(), comparison)
    assert " × ".join(map(str, shape)) in text
    assert str(comparison) in text and "l1/l2: l1 norm of the coefficients" in text
    assert max(len(line) for line in text.splitlines() if "  " in line) <= 80  # rows of tables and trees
    figures = [organization.plot("slices"), organization.plot("trees"), comparison.plot()]
    if len(shape) == 3:
        figures.append(organization.plot("heads"))
        (tree,) = head_tree_section(organization).figures
        assert len(tree.plotly["data"][2]["z"]) == shape[2]
        assert len(head_map_section(organization).figures[0].plotly["data"][0]["x"]) == shape[2]
    for figure in figures:
        picture = io.BytesIO()
        save_figure(figure, picture)
        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape == tuple(np.round(figure.dpi * figure.get_size_inches()).astype(int)[::-1])
        assert pixels.std() > 1 and pixels.max() == 255  # something is drawn on white


def test_tokens_with_dollar_signs_and_missing_glyphs_are_drawn() -> None:
    tokens = ("$", "$x$", "Ġthe", "▁of", "深", "Ċ", "##ing", "averyverylongtoken")
    values: Any = np.random.default_rng(0).normal(size=(8, 8, 4))
    organization = organize(NetworkTensor(values, queries=tokens, keys=tokens))
    for figure in (organization.plot("slices"), organization.plot("trees")):
        labels = {label.get_text() for ax in figure.axes for label in ax.get_xticklabels()}
        assert {r"\$", r"\$x\$", "the", "of", "深", "⏎", "##ing", "averyverylo…"} <= labels
        save_figure(figure, io.BytesIO())


# ---- the map and the tree of the heads


def test_the_map_shows_the_diffusion_coordinates_coloured_by_layer() -> None:
    """Also in the second view, which leaves out heads that lie far from all others."""
    heads = tuple(f"L{head // 4}H{head % 4}" for head in range(60))
    tensor = NetworkTensor(np.random.default_rng(0).random((4, 4, 60)), heads=heads)
    organization = organize(tensor, iterations=1, refine=False)
    place = np.append(12.0, np.linspace(0, 5, 59))  # the first head is unlike any other
    affinity = np.exp(-np.abs(place[:, None] - place) / 5)
    organization = replace(organization, affinities=(*organization.affinities[:2], affinity))
    points = organization.embedding(6)
    section = head_map_section(organization)
    assert section.notes == ("Outside of the second figure: L0H0.",)
    for figure, count in zip(section.figures, (60, 59), strict=True):
        (trace,) = figure.plotly["data"]
        sides = [figure.plotly["layout"][f"{side}axis"]["title"]["text"] for side in "xy"]
        x, y = (int(side.removeprefix("diffusion coordinate ")) - 1 for side in sides)
        shown = [heads.index(name) for name in trace["customdata"]]
        assert len(shown) == count
        same([trace["x"], trace["y"]], points[shown][:, [x, y]].T)
        assert trace["marker"]["color"] == [head // 4 for head in shown]


def test_the_affinity_is_in_the_order_of_the_tree(organization) -> None:
    section = head_tree_section(organization)
    (figure,) = section.figures
    line, leaves, heat = figure.plotly["data"]
    tree, heads = organization.trees[2], organization.tensor.heads
    names = [heads[head] for head in tree.order]
    assert leaves["customdata"] == leaves["y"] == heat["x"] == heat["y"] == names
    assert leaves["marker"]["color"] == [int(name[1:].partition("H")[0]) for name in names]
    expected = organization.affinities[2][np.ix_(tree.order, tree.order)]
    np.testing.assert_allclose(np.array(heat["z"]), expected, atol=5.1e-5)
    same(figure.table[names[3]], expected[:, 3])
    branches = [(line["x"][at : at + 3], line["y"][at : at + 3]) for at in range(0, len(line["x"]), 4)]
    assert len(branches) == sum(tree.widths[1:])  # one from its parent to each folder but the root
    for (level, again, below), (parent, child, end) in branches:
        assert level == again == below - 1 and child == end
        one, other = heads.index(parent), heads.index(child)
        assert tree.levels[level][one] == tree.levels[level][other]


def test_the_strips_of_a_tree_are_coloured_by_the_mean_position_of_their_folder() -> None:
    (ax, _) = Tree([[0] * 4, [0, 1, 0, 1], [0, 1, 2, 3]]).plot().axes
    assert np.asarray(ax.images[0].get_array()).tolist() == [[1.5] * 4, [1, 1, 2, 2], [0, 2, 1, 3]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]


def test_the_page_has_axes_in_the_order_of_their_trees(organization) -> None:
    data = attention_data(organization)
    assert data["heads"] == list(organization.tensor.heads) and data["shape"] == [18, 18, 72]  # in the given order
    for tree, drawn in zip(organization.trees, data["trees"], strict=True):
        assert drawn["order"] == tree.order.tolist() != sorted(tree.order.tolist())
        assert (drawn["depth"], len(drawn["first"])) == (tree.depth, tree.size - 1)
        ordered = tree.levels[:, tree.order]
        # A range of the order is one folder on each of its levels.
        for first, end, top, bottom in drawn["folders"]:
            for level in range(top, bottom + 1):
                (label,) = set(ordered[level, first:end].tolist())
                assert np.flatnonzero(ordered[level] == label).tolist() == list(range(first, end))
        assert len(drawn["folders"]) == tree.folders.count


# ---- sparsity and softmax


def test_curves_and_exponents_are_those_of_the_comparison(sparsity) -> None:
    section = sparsity_section(sparsity)
    errors, regularity = section.figures
    assert [trace["name"] for trace in errors.plotly["data"]] == [one.name for one in sparsity.profiles]
    for trace, profile in zip(errors.plotly["data"], sparsity.profiles, strict=True):
        curve = profile.sparsity
        kept = curve.errors > 0
        same([trace["x"], trace["y"]], [100 * curve.counts[kept] / curve.counts[-1], curve.errors[kept]])
    fitted = [one for one in sparsity.profiles if one.holder is not None]
    points, lines = regularity.plotly["data"][::2], regularity.plotly["data"][1::2]
    for dots, line, profile in zip(points, lines, fitted, strict=True):
        same(dots["y"], profile.holder.log_rms)
        assert f"α {profile.holder.exponent:.2f}".replace("-", "−") in dots["name"]
        slope = (line["y"][1] - line["y"][0]) / (line["x"][1] - line["x"][0])
        assert slope == pytest.approx(profile.holder.rms.slope, abs=1e-3)
    (note,) = section.notes
    assert f"{sparsity.gain():.1%}" in note and f"{sparsity.gain(permuted=True):.1%}" in note


def test_figures_that_beat_their_control_are_blue() -> None:
    report = softmax_invariance(np.random.default_rng(1).random((10, 10, 5)), bootstrap=40)
    assert {contrast.beats_control for contrast in report.contrasts} == {False, True}
    section = invariance_section(report)
    assert "95% interval of the difference" in section.reading  # of half samples for the network, else of a bootstrap
    network, heads = section.figures
    rows = [text.replace("<br>", " ") for text in network.plotly["layout"]["yaxis"]["ticktext"]]
    colours = {"better than the control": BLUE, "not better": ORANGE}
    found = {}
    for trace in network.plotly["data"][1:]:
        assert trace["marker"]["color"] == colours.get(trace["name"], "#808080")
        found |= {(rows[at], trace["name"]): value for value, at in zip(trace["x"], trace["y"], strict=True)}
    expected = {(one.figure, "control: rows permuted"): one.control for one in report.contrasts}
    expected |= {(one.figure, list(colours)[not one.beats_control]): one.value for one in report.contrasts}
    assert found.keys() == expected.keys()
    same([found[key] for key in expected], list(expected.values()))
    for trace, own in zip(heads.plotly["data"], (report.heads_control, report.heads), strict=False):
        assert trace["customdata"] == [head.head for head in own]
        exponents = [(head.exponent.exponent, head.residual.exponent) for head in own]
        same(list(zip(trace["x"], trace["y"], strict=True)), exponents)
