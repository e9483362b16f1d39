"""What a page says beside its figures, and the notebook widget."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest
from matplotlib.figure import Figure

from attngeo.show.page import attention
from attngeo.show.page.doubts import doubts
from attngeo.weights.scoring.verdict import two_digits, verdicts


def test_a_rotary_model_is_doubted_by_its_score_over_all_offsets(smollm2_scores):
    frame = smollm2_scores.frame.filter(pl.col("head").is_null())
    own, other = (two_digits(frame[column].median()) for column in ("symmetry_rope", "symmetry_rope_repaired"))
    assert own == two_digits(verdicts(frame)[0].median)
    assert any(f"In it they give {other} instead of {own}" in line for line in doubts(frame, verdicts(frame), ["it"]))


def test_a_skew_layer_is_not_within_chance_and_a_control_of_fewer_layers_says_so(pair_scores):
    """A z of −20 is as far from chance as one of 20."""
    layers = pair_scores.frame.filter(pl.col("head").is_null(), stack="encoder").with_columns(
        symmetry=pl.Series([-0.6, 0.5, 0.02, 0.55]),
        symmetry_z=pl.Series([-20.0, 20.0, 1.0, 22.0]),
        symmetry_repaired=pl.Series([0.1, None, 0.3, None]),
    )
    spread, *others = doubts(layers, verdicts(layers), ["bert"])
    assert spread.endswith("In bert, layers lie between -0.60 and 0.55; 1 of 4 is within chance.")
    (control,) = [line for line in others if line.startswith("What layers share")]
    assert "they give 0.20 instead of -0.29 over the 2 of 4 layers that can be paired so" in control


def test_the_widget_holds_what_a_notebook_needs(organization):
    pytest.importorskip("anywidget")
    view = organization.view()
    assert view.data["shape"] == list(organization.values.shape)
    assert json.loads(json.dumps(view.data)) == view.data
    assert "export default" in view._esm and ".attngeo-widget" in view._css


def test_without_anywidget_there_is_the_static_figure(organization, monkeypatch):
    attention._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    assert isinstance(organization.view(), Figure)
    attention._widget_class.cache_clear()
