"""Statistics of a figure over texts, and of its difference from the control."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from attngeo.atlas.organizing.summary import _figure

FIGURES = {
    "gain": ("gain_permuted", 1),  # larger is better
    "l1_l2_trees": ("l1_l2_dyadic", -1),  # smaller is better
    "heads_procrustes": ("heads_procrustes_control", -1),
    "keys_information": ("keys_information_control", 1),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_means_intervals_and_the_share_of_texts_that_beat_their_control(figure):
    control, sign = FIGURES[figure]
    values, others = np.array([0.5, 0.75, 1.0, 0.625]), np.array([0.25, 0.5, 1.5, 0.5])
    frame = pl.DataFrame({figure: [*values, None, 0.25], control: [*others, 0.5, None]})
    found = _figure(frame, figure)
    known = np.append(values, 0.25)
    interval = stats.t.interval(0.95, 4, known.mean(), stats.sem(known))
    assert found is not None and found["texts"] == 5
    assert (found["mean"], found["std"]) == pytest.approx((known.mean(), known.std(ddof=1)))
    assert (found["low"], found["high"]) == pytest.approx(interval)
    difference = values - others
    interval = stats.t.interval(0.95, 3, difference.mean(), stats.sem(difference))
    assert (found["control"], found["difference"]) == pytest.approx((others.mean(), difference.mean()))
    assert (found["difference_low"], found["difference_high"]) == pytest.approx(interval)
    assert found["better"] == np.mean(sign * difference > 0)


def test_a_single_text_has_no_interval_and_an_unknown_figure_no_row():
    found = _figure(pl.DataFrame({"information": [0.5]}), "information")
    assert found == {"texts": 1, "mean": 0.5, "low": None, "high": None, "std": None}
    assert _figure(pl.DataFrame({"information": pl.Series([None], dtype=pl.Float64)}), "information") is None
