"""`attngeo compare`: the report, the files it writes, and bad input."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import attngeo
from attngeo.applications.compare import ModelComparison, ModelMap
from attngeo.cli.app import app
from tests.applications.compare.llama_pairs import random_model, save_model, tuned

ENCODER, DECODER = (str(attngeo.bundled.bundled(name)) for name in ("encoder", "decoder"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    made = {"base": random_model(0), "tuned": tuned(random_model(0), 0.1), "stranger": random_model(9)}
    made["wide"] = random_model(0, width=64)
    return {name: str(save_model(folder / name, tensors)) for name, tensors in made.items()}


def run(*arguments: str):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_answers_come_before_the_tables(models, tmp_path):
    out, figure = tmp_path / "c.parquet", tmp_path / "c.png"
    done = run(models["base"], models["tuned"], "--out", out, "--figure", figure, "--draws", "99")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[2].startswith("Changed: the forms of 3 layers") and lines[3].startswith("Related: the weights share")
    assert lines.index("layers, by change") > 4
    changes = [float(line.split()[1]) for line in lines[lines.index("layers, by change") + 2 :][:3]]
    assert changes == sorted(changes, reverse=True)
    assert ModelComparison.load(out).a == models["base"]
    assert figure.stat().st_size > 1000


def test_several_models_give_a_matrix(models, tmp_path):
    out, figure = tmp_path / "map.json", tmp_path / "map.png"
    refs = [models[name] for name in ("base", "stranger", "tuned")]
    done = run(*refs, "--out", out, "--figure", figure, "--draws", "99")
    assert done.exit_code == 0, done.output
    found = ModelMap.load(out)
    assert found.distances[0, 2] < 0.1 < found.distances[0, 1]
    assert found.order in ([1, 0, 2], [1, 2, 0]) and found.coordinates.shape == (3, 2)
    assert "no sign of a common origin" in done.stdout and figure.stat().st_size > 1000


def test_a_text_measures_the_distance_also_of_different_widths(models, tmp_path):
    pytest.importorskip("ot")
    pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("The heads of a network lie close together when they attend alike.")
    done = run(ENCODER, DECODER, "--text-file", text, "--draws", "99")
    assert done.exit_code == 0, done.output
    assert "between the geometries of 16 and 16 heads" in done.stdout
    assert "layer symmetry by" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["base"], "one model only, expected at least two to compare"),
        (["base", "wide"], "have the widths 48 and 64"),
        (["base", "/nowhere"], "no such folder"),
        (["base", "tuned", "--draws", "5"], "draws is 5, expected at least 99"),
        (["base", "tuned", "stranger", "--out", "map.csv"], "the distances of 3 models are saved as .json"),
        (["base", "tuned", "--figure", "c.gif"], "expected a name ending in"),
        (["base", "tuned", "--text-file", "/nowhere.txt"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(models, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = run(*(models.get(argument, argument) for argument in arguments))
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
