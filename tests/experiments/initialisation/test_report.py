"""The folder of figures and tables shows every initialisation, and its curves are what was measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from attngeo.errors import InputError
from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from experiments.initialisation.figures import (
    architecture_figure,
    form_figure,
    loss_figure,
    saved_figure,
    scale_figure,
)
from experiments.initialisation.figures.styles import STYLES
from experiments.initialisation.report import write_report
from experiments.initialisation.runs import read_runs
from experiments.initialisation.statistics import compare
from experiments.initialisation.table import as_csv, as_markdown, as_text, forms_as_csv
from tests.experiments.initialisation.finished_runs import finished_run, run_until_5
from tests.experiments.initialisation.small_grids import prepare_small_tokens, run_in, small_grid


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return prepare_small_tokens(tmp_path)


def test_the_report_has_every_table_and_figure(tmp_path: Path, tokens: Path) -> None:
    run_in(tmp_path, small_grid(("baseline", "unit symmetric", "unit rotated", "unit indefinite", "independent")))
    run_in(tmp_path, small_grid(("std 0.05 symmetric",)))
    run_in(tmp_path, small_grid(("baseline", "unit symmetric"), objective="causal"))
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


def test_a_report_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: no finished runs to draw"):
        write_report([], tmp_path / "none")


def test_a_figure_has_a_curve_per_initialisation(tmp_path: Path, tokens: Path) -> None:
    starts = ("baseline", "unit symmetric", "independent")
    run_in(tmp_path, small_grid(starts, seeds=1))
    upper, lower = loss_figure(read_runs([tmp_path / "runs.jsonl.xz"])).axes
    assert {line.get_label() for line in upper.get_lines()} == {f"{start} (1 seed)" for start in starts}
    assert {line.get_label() for line in lower.get_lines()} == {f"{start} (1 seed)" for start in starts}
    assert lower.get_lines()[0].get_ydata().tolist() == [0.0] * 6  # the baseline minus itself


def test_runs_that_end_at_a_loss_are_drawn_to_their_own_ends() -> None:
    ends = {"baseline": (80, 100), "unit symmetric": (40, 60)}  # by seed
    losses = {start: [{0: 9.0, 20: 7.0, 40: 6.0, end: 4.9} for end in both] for start, both in ends.items()}
    runs = [run_until_5(start, seed, losses[start][seed]) for start in losses for seed in (0, 1)]
    upper, lower = loss_figure(runs).axes
    assert [line.get_xdata()[-1] for line in upper.get_lines()] == [80, 100, 40, 60]
    assert [line.get_ydata().tolist() for line in lower.get_lines()][2:] == [[0.0, 0.0, 4.9 - 6.0], [0.0, 0.0, 0.0]]


def test_a_loss_that_rises_again_is_shown_in_full() -> None:
    upper, _ = loss_figure([finished_run("baseline", 0, [9.9, 6.75, 6.91, 6.87])]).axes
    assert upper.get_ylim()[0] < 6.75


def test_curves_are_means_and_ranges_over_seeds(tmp_path: Path, tokens: Path) -> None:
    """The encoder is in the first column and the decoder in the second."""
    run_in(tmp_path, small_grid(("baseline",)))
    run_in(tmp_path, small_grid(("baseline",), objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    axes = form_figure(runs).axes
    assert [ax.get_title(loc="left") for ax in axes[:2]] == ["BERT, encoder (masked)", "BERT, decoder (causal)"]
    kinds = [("masked", "symmetry"), ("causal", "symmetry"), ("masked", "directionality"), ("causal", "directionality")]
    for ax, (objective, score) in zip(axes, kinds, strict=True):
        same = [run for run in runs if run.cell.objective == objective]
        for layer, line in enumerate(ax.get_lines()[:2]):
            mean = [sum(run.records[i][score][layer] for run in same) / 2 for i in (0, 5)]  # of six
            assert line.get_ydata().tolist() == pytest.approx(mean)
    rows = list(csv.DictReader(forms_as_csv(runs).splitlines()))
    assert [(row["objective"], row["layer"], row["seeds"]) for row in rows] == [
        (objective, layer, "2") for objective in ("masked", "causal") for layer in "01"
    ]
    ends = [run.records[-1]["directionality"][1] for run in runs[2:]]
    assert [float(rows[3][f"directionality{kind}"]) for kind in ("_low", "", "_high")] == pytest.approx(
        [min(ends), sum(ends) / 2, max(ends)]
    )
    masked = [run for run in runs if run.cell.objective == "masked"]
    lines = loss_figure(masked).axes[0].get_lines()  # one per seed
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx([run.loss for run in masked])


ROOT = Path(__file__).resolve().parents[3]


def test_every_initialisation_has_a_colour_of_its_own() -> None:
    assert len({colour for colour, _, _ in STYLES.values()}) == len(STYLES)


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


def test_a_single_seed_is_a_cross_and_every_setting_has_its_axis() -> None:
    table = [row for row in compare(read_runs([ROOT / "results" / "initialisation"])) if row.saved is not None]
    axes = saved_figure(table).axes
    shown = {}
    for ax in axes[1::2]:
        marks = [line for line in ax.get_lines() if line.get_marker() not in ("", "None")]
        for line in marks:
            shown[round(float(line.get_xdata()[0]), 12)] = line.get_marker()
        assert ax.get_xlim() != axes[1].get_xlim() or ax is axes[1]
    for row in table:
        assert (shown[round(row.difference.mean, 12)] == "x") == (len(row.seeds) == 1)


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


def test_encoders_and_decoders_are_apart_where_one_figure_would_be_too_wide(tmp_path: Path, tokens: Path) -> None:
    other = ({"architecture": "modernbert"}, {"norm": "pre"}, {})
    for settings in other:
        run_in(tmp_path, small_grid(("baseline",), seeds=1, settings=settings))
    run_in(tmp_path, small_grid(("baseline",), seeds=1, objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert sorted(run.cell.model for run in runs) == ["BERT", "BERT", "ModernBERT", "pre-norm BERT"]
    names = {path.name for path in write_report(runs, tmp_path / "figures") if path.suffix == ".png"}
    forms = sorted(name for name in names if name.startswith("form-"))
    assert len(forms) == 2 and "-causal-baseline" in forms[0] and "-masked-baseline" in forms[1]
