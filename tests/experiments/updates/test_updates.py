"""The experiment on updates, in small: rows per head and step, changes of the forms, the tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attngeo.weights.scoring.form import Form
from experiments.updates.__main__ import main
from experiments.updates.measure import change, change_columns, persistence
from experiments.updates.records import read_rows
from experiments.updates.tables import tables
from tests.experiments.initialisation.small_grids import prepare_small_tokens

ROOT = Path(__file__).parents[3]
SMALL = ('size="2x32"', "heads=2", "length=16", "batch=8", "steps=20", "evaluations=4", "warmup=2", 'compile="no"')


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return prepare_small_tokens(tmp_path_factory.mktemp("updates"))


@pytest.fixture(scope="module")
def rows(tokens, tmp_path_factory):
    results = tmp_path_factory.mktemp("results") / "updates.jsonl"
    arguments = ["run", "--tokens", str(tokens), "--results", str(results), "--seeds", "1", "--steps", "0", "10"]
    assert main([*arguments, "--passes", "4", "--rows", "2", "--set", *SMALL]) == 0
    assert main([*arguments, "--passes", "4", "--rows", "2", "--set", *SMALL]) == 0  # nothing is left to run
    return [json.loads(line) for line in results.read_text("utf-8").splitlines()]


def test_every_head_is_measured_at_every_step(rows):
    keys = [(row["objective"], row["step"], row["label"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * 2 * 4


def test_pairs_exist_for_the_encoder_only(rows):
    assert all((row["pairing_split"] is None) == (row["objective"] == "causal") for row in rows)


def test_the_change_by_the_optimiser_is_that_of_the_next_evaluation(rows):
    assert all(row["moved_norm"] > 0 and -1 <= row["moved_symmetry"] <= 1 for row in rows)
    assert all((row["since_start_norm"] is None) == (row["step"] == 0) for row in rows)
    assert all((row["persistence_skew"] is None) == (row["step"] == 0) for row in rows)


def test_the_change_of_a_form_is_the_difference_of_both():
    draw = np.random.default_rng(0)
    before, after = ((draw.normal(size=(6, 2)), draw.normal(size=(6, 2))) for _ in range(2))
    expected = after[0] @ after[1].T - before[0] @ before[1].T
    np.testing.assert_allclose(change(before, after).dense(), expected, atol=1e-12)
    columns = change_columns("moved", change(before, after))
    assert columns["moved_norm"] == pytest.approx(np.linalg.norm(expected))
    assert columns["moved_row_variance"] == pytest.approx(np.var(np.linalg.norm(expected, axis=1), ddof=1))


def test_persistence_is_the_cosine_of_each_part():
    draw = np.random.default_rng(1)
    later, earlier = (Form(*draw.normal(size=(2, 6, 3))) for _ in range(2))
    found = persistence(later, earlier)
    for part, sign in (("symmetric", 1), ("skew", -1)):
        a, b = ((form.dense() + sign * form.dense().T) / 2 for form in (later, earlier))
        expected = np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))
        assert found[f"persistence_{part}"] == pytest.approx(expected)
    nothing = Form(np.zeros((6, 1)), np.zeros((6, 1)))
    assert set(persistence(later, nothing).values()) == {None}


def test_tables_have_a_line_per_step_and_layers_a_column_each(rows, tmp_path):
    path, page = tmp_path / "updates.jsonl", tmp_path / "page.md"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page.write_text(
        "<!-- table: updates, masked -->\nold\n<!-- end -->\n<!-- table: updates, layers -->\n<!-- end -->\n"
    )
    assert main(["page", "--page", str(page), str(path)]) == 0
    lines = page.read_text().splitlines()
    assert lines[1].startswith("| step | pairing of β |") and [line.split()[1] for line in lines[3:5]] == ["0", "10"]
    assert "| layer 0 | layer 1 |" in page.read_text() and "old" not in page.read_text()


def test_growth_is_summed_over_pairs_and_the_heads_with_more_of_the_symmetric_part_are_counted():
    kinds = ("position", "token", "rest")
    growths = [((1, 2, 4), (3, 3, 3)), ((5, 0, 0), (1, 1, 1)), ((1, 1, 2), (1, 0, 0))]  # 7 and 9, 5 and 3, 4 and 1
    rows = [
        {"objective": "masked", "step": 10, "layer": 0, "persistence_symmetric": 0.1, "persistence_skew": 0.2}
        | {f"growth_symmetric_{kind}": value / 1e6 for kind, value in zip(kinds, symmetric, strict=True)}
        | {f"growth_skew_{kind}": value / 1e6 for kind, value in zip(kinds, skew, strict=True)}
        for symmetric, skew in growths
    ]
    made = tables(rows)
    assert made["updates, growth"].splitlines()[2] == "| masked | 10 | 1 | 1 | 2 | 5 | 1 | 1 | 1 | 3 | 2 of 3 |"
    assert made["updates, persistence"].splitlines()[2] == "| masked | 10 | 0.10 | 0.20 | 0 of 3 |"


def test_the_tables_of_the_record_are_those_of_the_logs(tmp_path):
    record = ROOT / "experiments/updates/RESULTS.md"
    copy = tmp_path / "RESULTS.md"
    copy.write_bytes(record.read_bytes())
    assert main(["page", "--page", str(copy)]) == 0
    assert copy.read_text("utf-8") == record.read_text("utf-8")
    for name in tables(read_rows([ROOT / "results/updates"])):
        assert f"<!-- table: {name} -->" in copy.read_text("utf-8")
