"""The folder of figures and tables shows every initialisation, and its curves are what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from experiments.initialisation.figures import (
    architecture_figure,
    form_figure,
    loss_figure,
    scale_figure,
)
from experiments.initialisation.report import write_report
from experiments.initialisation.runs import read_runs
from experiments.initialisation.statistics import compare
from experiments.initialisation.table import as_csv, as_markdown, as_text, forms_as_csv
from tests.experiments.initialisation.small_grids import prepare_small_tokens, run_in, small_grid


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return prepare_small_tokens(tmp_path)


def test_the_report_has_every_table_and_figure(tmp_path: Path, tokens: Path) -> None:
    run_in(tmp_path, small_grid(("baseline", "unit symmetric", "unit rotated", "unit indefinite", "independent")))
    run_in(tmp_path, small_grid(("std 0.05 symmetric",)))
    run_in(tmp_path, small_grid(("baseline", "unit symmetric"), seeds=1, objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    written = {path.name: path.read_bytes() for path in write_report(runs, tmp_path / "figures")}
    table = compare(runs)
    expected = {"table.txt": as_text(table), "table.md": as_markdown(table), "table.csv": as_csv(table),
                "form.csv": forms_as_csv(runs)}  # fmt: skip
    images = {name for name in written if name.endswith((".png", ".pdf"))}
    assert {name: data.decode() for name, data in written.items() if name not in images} == {
        name: f"{text}\n" for name, text in expected.items()
    }
    assert {"losses-masked-2x32.png", "losses-causal-2x32.png", "saved.png", "controls.png",
            "mechanism.png", "architectures.png"} <= images  # fmt: skip
    assert any(name.startswith("scale-masked-2x32-lr0.001-20-batch") for name in images)
    assert any(name.startswith("form-2x32-lr0.001-20-batch") and name.endswith("-baseline.png") for name in images)
    pictures = {name.removesuffix(".png") for name in images if name.endswith(".png")}
    assert pictures == {name.removesuffix(".pdf") for name in images if name.endswith(".pdf")}
    for name in pictures:
        assert written[f"{name}.png"].startswith(b"\x89PNG") and written[f"{name}.png"].endswith(b"IEND\xaeB`\x82")
        assert written[f"{name}.pdf"].startswith(b"%PDF")


ROOT = Path(__file__).resolve().parents[3]


def test_differences_are_not_clipped_and_forms_have_their_nulls() -> None:
    runs = [run for run in read_runs([ROOT / "results" / "initialisation"]) if run.diverged is None]
    small = [run for run in runs if run.cell.size == "4x256" and run.cell.objective == "masked" and not run.cell.other]
    figure = loss_figure(small)
    for ax in figure.axes[len(figure.axes) // 2 :]:  # the lower panels
        low, high = ax.get_ylim()
        values = [value for line in ax.get_lines() for value in line.get_ydata()]
        assert low < min(values) and max(values) < high
    form = form_figure([run for run in small if run.cell.start == "baseline" and run.cell.lr == 5e-4])
    null = gaussian_null(256, 256, 256)
    for ax, std in zip(form.axes, (null.symmetry_std, null.directionality_std), strict=True):
        (band,) = [patch for patch in ax.patches if patch.get_label().startswith("random layers")]
        assert band.get_height() == pytest.approx(2 * 1.96 * std)


def test_a_rotary_model_has_a_column_for_its_average_over_offsets() -> None:
    grid = read_runs([ROOT / "results" / "initialisation_grid"])
    runs = [run for run in grid if run.cell.start == "baseline" and run.cell.lr == 2e-3 and run.cell.seed == 0]
    assert sorted(run.cell.model for run in runs) == ["BERT", "ModernBERT"]
    axes = form_figure(runs).axes
    assert [ax.get_title(loc="left").partition("\n")[2] for ax in axes[:3]] == [
        "", "at offset 0", "average over all offsets"
    ]  # fmt: skip
    (modern,) = [run for run in runs if run.cell.model == "ModernBERT"]
    for ax, score in zip(
        (axes[1], axes[2], axes[5]), ("symmetry", "symmetry_rope", "directionality_rope"), strict=True
    ):
        assert [line.get_ydata()[-1] for line in ax.get_lines()[:4]] == pytest.approx(modern.records[-1][score])
    null = rotary_null(256, 256, 4, 32, 0)
    (band,) = [patch for patch in axes[5].patches if patch.get_label().startswith("random layers")]
    assert band.get_height() == pytest.approx(2 * 1.96 * null.directionality_std)


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


def test_the_figure_of_scales_shows_every_seed_and_the_means_of_both_forms() -> None:
    runs = read_runs([ROOT / "results" / "initialisation", ROOT / "results" / "initialisation_grid"])
    same = [run for run in runs if run.cell.setting == ("masked", "4x256", 5e-4, 9_500, ())]
    left, right = scale_figure(same).axes
    at_unit = sorted(run.loss for run in same if run.cell.start == "unit symmetric" and run.cell.seed < 3)
    means = {line.get_label(): line for line in left.get_lines() if line.get_label() in ("independent", "symmetric")}
    stds = [0.02, 0.03, 0.045, 0.0625, 0.09, 0.125]
    assert all(line.get_xdata().tolist() == stds for line in means.values())
    assert means["symmetric"].get_ydata()[3] == pytest.approx(sum(at_unit) / 3)
    points = [sorted(line.get_ydata()) for line in left.get_lines() if line.get_marker() == "o"]
    assert len(points) == 6 and points[3] == at_unit
    first = [run.first_below(5.5) for run in same if run.cell.start == "std 0.09 symmetric"]
    (line,) = [line for line in right.get_lines() if line.get_label() == "symmetric"]
    assert line.get_ydata()[4] == pytest.approx(sum(first) / 3)
