"""The folder of figures and tables shows every initialisation, and its curves are what was measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from attngeo.errors import InputError
from experiments.initialisation.figures import form_figure, loss_figure
from experiments.initialisation.report import write_report
from experiments.initialisation.runs import read_runs
from experiments.initialisation.statistics import compare
from experiments.initialisation.table import as_csv, as_markdown, as_text, forms_as_csv
from tests.experiments.initialisation.small_grids import prepare_small_tokens, run_in, small_grid


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return prepare_small_tokens(tmp_path)


def test_the_report_has_every_table_and_figure(tmp_path: Path, tokens: Path) -> None:
    run_in(tmp_path, small_grid(("baseline", "unit symmetric", "unit rotated", "independent")))
    run_in(tmp_path, small_grid(("baseline", "unit symmetric"), objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    written = {path.name: path.read_bytes() for path in write_report(runs, tmp_path / "figures")}
    table = compare(runs)
    expected = {"table.txt": as_text(table), "table.md": as_markdown(table), "table.csv": as_csv(table),
                "form.csv": forms_as_csv(runs)}  # fmt: skip
    assert {name: data.decode() for name, data in written.items() if not name.endswith(".png")} == {
        name: f"{text}\n" for name, text in expected.items()
    }
    images = {name for name in written if name.endswith(".png")}
    assert {"losses-masked-2x32.png", "losses-causal-2x32.png", "saved.png", "controls.png"} <= images
    assert any(name.startswith("form-2x32-lr0.001-20-batch") and name.endswith("-baseline.png") for name in images)
    assert all(written[name].startswith(b"\x89PNG") and written[name].endswith(b"IEND\xaeB`\x82") for name in images)


def test_a_report_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: no finished runs to draw"):
        write_report([], tmp_path / "none")


def test_a_figure_has_a_curve_per_initialisation(tmp_path: Path, tokens: Path) -> None:
    starts = ("baseline", "unit symmetric", "independent")
    run_in(tmp_path, small_grid(starts, seeds=1))
    upper, lower = loss_figure(read_runs([tmp_path / "runs.jsonl.xz"])).axes
    assert {line.get_label() for line in upper.get_lines()} == set(starts)
    assert {line.get_label() for line in lower.get_lines()} == set(starts)
    assert lower.get_lines()[0].get_ydata().tolist() == [0.0] * 6  # the baseline minus itself


def test_curves_are_means_and_ranges_over_seeds(tmp_path: Path, tokens: Path) -> None:
    """The encoder is in the first column and the decoder in the second."""
    run_in(tmp_path, small_grid(("baseline",)))
    run_in(tmp_path, small_grid(("baseline",), objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    axes = form_figure(runs).axes
    assert [ax.get_title(loc="left") for ax in axes[:2]] == ["encoder (masked)", "decoder (causal)"]
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
    (line,) = loss_figure(masked).axes[0].get_lines()
    assert line.get_ydata()[-1] == pytest.approx(sum(run.loss for run in masked) / 2)
