"""Sections of organised networks show the values of their results."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.organization import organize, planted
from attngeo.show.page.sections import head_map_section, head_tree_section, invariance_section, sparsity_section

EXACT = {"rel": 1e-4, "abs": 1e-12}  # five significant digits


def test_the_affinity_is_in_the_order_of_the_tree(minilm_organization):
    (figure,) = head_tree_section(minilm_organization).figures
    _, leaves, heat = figure.plotly["data"]
    order = minilm_organization.trees[2].order
    names = [minilm_organization.tensor.heads[head] for head in order]
    assert leaves["customdata"] == leaves["y"] == heat["x"] == heat["y"] == names
    assert leaves["marker"]["color"] == [int(name[1:].partition("H")[0]) for name in names]
    expected = minilm_organization.affinities[2][np.ix_(order, order)]
    np.testing.assert_allclose(np.array(heat["z"]), expected, atol=5.1e-5)
    assert figure.table[names[3]] == pytest.approx(expected[:, 3].tolist(), **EXACT)


def test_colours_of_the_heads_are_explained_and_visible_on_a_dark_page(minilm_organization):
    section = head_tree_section(minilm_organization)
    _, leaves, heat = section.figures[0].plotly["data"]
    assert "coloured by layer" in section.reading
    assert (
        leaves["marker"]["line"] == head_map_section(minilm_organization).figures[0].plotly["data"][0]["marker"]["line"]
    )
    assert np.max(heat["z"]) > heat["zmax"] and "upper end of the colour bar" in section.reading


def test_every_branch_of_the_tree_leads_from_a_folder_to_its_part(minilm_organization):
    (figure,) = head_tree_section(minilm_organization).figures
    line = figure.plotly["data"][0]
    tree = minilm_organization.trees[2]
    heads = minilm_organization.tensor.heads
    branches = [(line["x"][at : at + 3], line["y"][at : at + 3]) for at in range(0, len(line["x"]), 4)]
    assert len(branches) == sum(tree.widths[1:])  # one to each folder but the root
    for (level, same, below), (parent, child, end) in branches:
        assert level == same == below - 1 and child == end
        one, other = heads.index(parent), heads.index(child)
        assert tree.levels[level][one] == tree.levels[level][other]


def test_the_map_shows_the_diffusion_coordinates(minilm_organization):
    section = head_map_section(minilm_organization)
    points = minilm_organization.embedding(6)
    first, second = (figure.plotly["data"][0] for figure in section.figures)
    heads = minilm_organization.tensor.heads
    assert first["customdata"] == list(heads)
    assert first["x"] == pytest.approx(points[:, 0].tolist(), **EXACT)
    assert first["y"] == pytest.approx(points[:, 1].tolist(), **EXACT)
    assert first["marker"]["color"] == [head // 12 for head in range(72)]
    x, y = (int(second_axis["title"]["text"][-1]) - 1 for second_axis in (
        section.figures[1].plotly["layout"]["xaxis"], section.figures[1].plotly["layout"]["yaxis"]))  # fmt: skip
    shown = [heads.index(name) for name in second["customdata"]]
    assert second["x"] == pytest.approx(points[shown, x].tolist(), **EXACT)
    assert second["y"] == pytest.approx(points[shown, y].tolist(), **EXACT)
    assert len(section.notes) == (len(shown) < 72)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_networks_with_few_heads_can_be_drawn(heads):
    organization = organize(planted((8, 8, heads), seed=0)[0])
    (tree,) = head_tree_section(organization).figures
    assert len(tree.plotly["data"][2]["z"]) == heads
    assert len(head_map_section(organization).figures[0].plotly["data"][0]["x"]) == heads


def test_curves_and_exponents_are_those_of_the_comparison(minilm_sparsity):
    errors, regularity = sparsity_section(minilm_sparsity).figures
    assert [trace["name"] for trace in errors.plotly["data"]] == [one.name for one in minilm_sparsity.profiles]
    for trace, profile in zip(errors.plotly["data"], minilm_sparsity.profiles, strict=True):
        curve = profile.sparsity
        kept = curve.errors > 0
        assert trace["y"] == pytest.approx(curve.errors[kept].tolist(), **EXACT)
        assert trace["x"] == pytest.approx((100 * curve.counts / curve.counts[-1])[kept].tolist(), **EXACT)
    fitted = [one for one in minilm_sparsity.profiles if one.holder is not None]
    points, lines = regularity.plotly["data"][::2], regularity.plotly["data"][1::2]
    for dots, line, profile in zip(points, lines, fitted, strict=True):
        assert dots["y"] == pytest.approx(profile.holder.log_rms.tolist(), **EXACT)
        assert f"α {profile.holder.exponent:.2f}".replace("-", "−") in dots["name"]
        slope = (line["y"][1] - line["y"][0]) / (line["x"][1] - line["x"][0])
        assert slope == pytest.approx(profile.holder.rms.slope, abs=1e-3)
    (note,) = sparsity_section(minilm_sparsity).notes
    assert f"{minilm_sparsity.gain():.1%}" in note and f"{minilm_sparsity.gain(permuted=True):.1%}" in note


def test_contrasts_are_those_of_the_report(encoder_invariance):
    section = invariance_section(encoder_invariance)
    assert "95% interval of the difference" in section.reading  # of half samples for the network, else of a bootstrap
    network, heads = section.figures
    shown = {}
    for trace in network.plotly["data"][1:]:
        for x, y in zip(trace["x"], trace["y"], strict=True):
            shown.setdefault(y.replace("<br>", " "), {})[trace["name"]] = x
    for contrast in encoder_invariance.contrasts:
        own = shown[contrast.figure]
        assert own["control: rows permuted"] == pytest.approx(contrast.control, **EXACT)
        name = "better than the control" if contrast.beats_control else "not better"
        assert own[name] == pytest.approx(contrast.value, **EXACT)
    control, dots, *_ = heads.plotly["data"]
    assert dots["customdata"] == [head.head for head in encoder_invariance.heads]
    assert dots["y"] == pytest.approx([head.residual.exponent for head in encoder_invariance.heads], **EXACT)
    assert control["x"] == pytest.approx([head.exponent.exponent for head in encoder_invariance.heads_control], **EXACT)
