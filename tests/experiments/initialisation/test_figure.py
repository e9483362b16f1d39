"""The figure of the architectures shows the differences of the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.initialisation.figure import architecture_figure
from experiments.initialisation.runs import read_runs

ROOT = Path(__file__).resolve().parents[3]


def test_every_architecture_has_a_row_of_intervals_at_its_own_best_rates() -> None:
    """ModernBERT 4x256: the baseline is best at 2e-3, unit symmetric at 4e-3; of 12x768 the longer runs are shown."""
    runs = read_runs([ROOT / "results" / "initialisation", ROOT / "results" / "initialisation_grid"])
    (ax,) = architecture_figure(runs).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert [label.partition("\n")[0] for label in labels[:4]] == [
        "BERT, masked, 4x256", "BERT, masked, 12x768", "BERT, masked, 24x1024", "pre-norm BERT, masked, 4x256"
    ]  # fmt: skip
    (place,) = [place for place, label in enumerate(labels) if label.startswith("ModernBERT, masked, 4x256")]
    assert "lr 0.002, 0.004; 9,500 steps; 5 seeds" in labels[place]
    modern = [run for run in runs if (run.cell.model, run.cell.size) == ("ModernBERT", "4x256")]
    losses = {
        start: [run.loss for run in modern if (run.cell.start, run.cell.lr) == (start, rate)]
        for start, rate in (("baseline", 2e-3), ("unit symmetric", 4e-3))
    }
    difference = sum(losses["unit symmetric"]) / 5 - sum(losses["baseline"]) / 5
    (mark,) = [line for line in ax.get_lines() if line.get_marker() == "o" and list(line.get_ydata()) == [place]]
    assert mark.get_xdata()[0] == pytest.approx(difference)
    assert not any("1,500 steps" in label or "21,000 steps" in label for label in labels)
