"""The figure of a backward pass draws the numbers of its terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngeo.show.gradients import gradient_figure
from attngeo.training.gradients.gradient_terms import gradient_terms
from tests.training.gradients.gradient_models import assert_same, labelled_batch, model_with_loss


def test_contributions_by_position_are_means_over_heads_and_sequences() -> None:
    terms = gradient_terms(model_with_loss("gpt2"), labelled_batch("gpt2", padded=False))
    roles = terms.by_position["decoder"]
    for name, values in roles.items():
        norms = np.stack([getattr(head, name).norm for head in terms])  # [heads, S, N]
        assert_same(values, (norms / norms.mean(2, keepdims=True)).mean((0, 1)))
        assert abs(values.mean() - 1) < 1e-12
    assert roles["prediction"][0] == 0  # the first token of a causal text attends to itself only


@pytest.fixture(scope="module")
def several() -> list[Any]:
    """The terms of an encoder and of a decoder."""
    return [gradient_terms(model_with_loss(kind), labelled_batch(kind)) for kind in ("bert", "gpt2")]


def test_each_model_has_a_row_with_its_own_beta(several) -> None:
    figure = gradient_figure(several, heads=["L1H2", None], tokens=[[f"w{n}" for n in range(9)], ()])
    axes = [ax for ax in figure.axes if ax.get_subplotspec() is not None and ax.get_title(loc="left")]
    assert len(axes) == 8
    for row, (terms, head) in enumerate(zip(several, ("L1H2", several[1].largest), strict=True)):
        ax = axes[4 * row]
        assert f"β of {head}" in ax.get_title(loc="left")
        beta = terms[head].beta[0]
        drawn = np.asarray(ax.images[0].get_array())
        size = len(drawn)  # the last token of a causal text predicts nothing: it is left out
        assert not beta[size:].any() and not beta[:, size:].any() and size >= 8
        assert_same(drawn * np.abs(drawn), beta[:size, :size], 1e-9)
        assert {line.get_label() for line in axes[4 * row + 1].lines} >= {"as context", "as prediction"}
    assert [label.get_text() for label in axes[0].get_xticklabels()][:2] == ["w0", "w1"]
    assert axes[3].get_xlim() == axes[7].get_xlim()  # rows can be compared
    figure.draw_without_rendering()


def test_by_default_all_models_show_the_same_head(several) -> None:
    titles = [ax.get_title(loc="left") for ax in gradient_figure(several).axes]
    (label,) = {title.partition("β of ")[2] for title in titles if "β of" in title}
    shares = [min(terms[label].scores.norm / terms[terms.largest].scores.norm for terms in several)]
    shares += [min(t[other].scores.norm / t[t.largest].scores.norm for t in several) for other in several[0].labels]
    assert shares[0] == max(shares)


def test_what_a_mask_forbids_is_grey_and_a_small_beta_is_not(several) -> None:
    (ax,) = (ax for ax in several[1].plot().axes if "β of" in ax.get_title(loc="left"))
    values, grey = ax.images
    is_grey = np.isfinite(np.ma.filled(grey.get_array(), np.nan))
    assert is_grey[np.triu(np.ones_like(is_grey), 1)].all()
    assert not (is_grey & (np.asarray(values.get_array()) != 0)).any()
    assert [note for note in ax.texts if "grey: no term" in note.get_text()]


def test_the_stacks_of_one_model_have_separate_lines() -> None:
    figure = gradient_terms(model_with_loss("t5"), labelled_batch("t5"), layers=[0]).plot()
    labels = {line.get_label() for ax in figure.axes for line in ax.lines}
    assert {"encoder, as context", "decoder, as prediction"} <= labels
