"""The comparison of an encoder with a decoder shows the null it is given and the training records, if any."""

from __future__ import annotations

from statistics import median

import polars as pl
import pytest

import attngeo
from attngeo.data import NAMES, bundled
from attngeo.show.demo_report import demo_figure, demo_text
from attngeo.training import bundled_records
from attngeo.weights.scoring.score_table import NullLevel
from attngeo.weights.scoring.verdict import verdicts


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return pl.concat(
        attngeo.score(str(bundled(name)), nulls=False).frame.with_columns(model=pl.lit(name)) for name in NAMES
    )


def nulls(std: float | None) -> dict[tuple[str, str], dict[str, NullLevel]]:
    """Return a made-up null, the same for both models."""
    return {(name, name): {"symmetry": NullLevel(0.25, std), "directionality": NullLevel(0, std)} for name in NAMES}


def test_the_null_is_printed_as_given(frame: pl.DataFrame) -> None:
    (line,) = [line for line in demo_text(frame, nulls(0.125), (), {}).splitlines() if line.startswith("random layer ")]
    assert line.split("  ")[1:] == ["+0.250 ± 0.125", "+0.000 ± 0.125"] * 2
    (line,) = [line for line in demo_text(frame, nulls(None), (), {}).splitlines() if line.startswith("random layer ")]
    assert line.split()[2:] == ["+0.250", "+0.000"] * 2


def test_training_is_shown_where_it_is_known(frame: pl.DataFrame) -> None:
    records = {name: bundled_records(name) for name in NAMES}
    assert "over training" in demo_text(frame, nulls(0.1), (), records)
    assert "over training" not in demo_text(frame, nulls(0.1), (), {})
    assert len(demo_figure(frame, nulls(0.1), {}).axes) == 2
    lower = demo_figure(frame, nulls(0.1), records).axes[2:]
    for ax, score in zip(lower, ("symmetry", "directionality"), strict=True):
        for line, name in zip(ax.lines, NAMES, strict=True):
            assert line.get_xdata().tolist() == [record["step"] for record in records[name]]
            assert line.get_ydata().tolist() == [median(record[score]) for record in records[name]]


def test_verdicts_are_printed_below_the_table(frame: pl.DataFrame) -> None:
    text = demo_text(frame, nulls(0.1), verdicts(frame), {})
    for verdict in verdicts(frame):
        assert f"{verdict.model}: {verdict.sentence}" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
