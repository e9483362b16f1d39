"""`attngeo compare`: the report, the files it writes, and bad input."""

from __future__ import annotations

import json

import pytest

import attngeo
from attngeo.applications.compare import ModelComparison, ModelMap
from tests.applications.compare.llama_pairs import random_model, save_model, tuned
from tests.cli.commands import call, error_line

ENCODER, DECODER = (str(attngeo.bundled(name)) for name in ("encoder", "decoder"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    made = {"base": random_model(0), "tuned": tuned(random_model(0), 0.1), "stranger": random_model(9)}
    made["wide"], made["short"], made["nan"] = random_model(0, width=64), random_model(0), random_model(0)
    made["short"]["model.embed_tokens.weight"] = made["short"]["model.embed_tokens.weight"][:200]
    made["nan"]["model.layers.2.self_attn.k_proj.weight"][3, 5] = float("nan")
    return {name: str(save_model(folder / name, tensors)) for name, tensors in made.items()}


def run(*arguments: object):
    return call("compare", *arguments)


def test_the_answers_come_before_the_tables(models, tmp_path):
    out, figure = tmp_path / "c.parquet", tmp_path / "c.png"
    done = run(models["base"], models["tuned"], "--out", out, "--figure", figure, "--draws", "99")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2].startswith("Changed: the forms of 3 layers") and lines[3].startswith("Related: the weights share")
    assert lines.index("layers, by change") > 4
    changes = [float(line.split()[1]) for line in lines[lines.index("layers, by change") + 2 :][:3]]
    assert changes == sorted(changes, reverse=True)
    assert ModelComparison.load(out).a == models["base"]
    assert figure.stat().st_size > 1000


def test_a_json_file_holds_the_answers_and_what_made_them(models, tmp_path):
    out = tmp_path / "c.json"
    assert run(models["base"], models["tuned"], "--out", out, "--draws", "99").returncode == 0
    written = json.loads(out.read_text("utf-8"))
    assert written["related"]["p_value"] == 0.01 and written["changes"][0]["change"] > 0
    assert written["made_with"]["options"]["draws"] == 99


def test_several_models_give_a_matrix(models, tmp_path):
    out, figure = tmp_path / "map.json", tmp_path / "map.png"
    refs = [models[name] for name in ("base", "stranger", "tuned")]
    done = run(*refs, "--out", out, "--figure", figure, "--draws", "99")
    assert done.returncode == 0, done.stderr
    found = ModelMap.load(out)
    assert found.distances[0, 2] < 0.1 < found.distances[0, 1]
    assert found.order in ([1, 0, 2], [1, 2, 0]) and found.coordinates.shape == (3, 2)
    assert "no sign of a common origin" in done.stdout and figure.stat().st_size > 1000


def test_texts_and_files_of_text_measure_the_distance(tmp_path):
    pytest.importorskip("ot")
    pytest.importorskip("transformers")
    texts = ["The heads of a network lie close together.", "They attend alike, and rest apart."]
    path = tmp_path / "second.txt"
    path.write_text(texts[1])
    mixed = run(ENCODER, DECODER, "--text", texts[0], "--text-file", path, "--draws", "99")
    assert mixed.returncode == 0, mixed.stderr
    assert "between the geometries of 16 and 16 heads" in mixed.stdout and "layer symmetry by" in mixed.stdout
    assert mixed.stdout == run(ENCODER, DECODER, "--text", texts[0], "--text", texts[1], "--draws", "99").stdout
    assert mixed.stdout != run(ENCODER, DECODER, "--text", texts[0], "--draws", "99").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["base", "short", "--align"], "align: "),
        (["base", "nan"], "k_proj"),
        (["base"], "one model only, expected at least two to compare"),
        (["base", "wide"], "no cosine; inputs (--text, --text-file) are needed to measure their distance"),
        (["base", "tuned", "--draws", "5"], "draws is 5, expected at least 99"),
        (["base", "tuned", "stranger", "--out", "map.csv"], "the distances of 3 models are saved as .json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(models, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(run(*(models.get(argument, argument) for argument in arguments)))
    assert not list(tmp_path.iterdir())
