"""`attngeo score` and `attngeo published`: what is printed and written, exit codes, options that are refused."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import attngeo
from tests.cli.commands import call, error_line, run, run_script


def rows(*arguments: object) -> list[dict]:
    """Return the rows that `attngeo score ARGUMENTS` prints as JSON."""
    done = call("score", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_module_and_the_script_are_the_same_command():
    script = Path(sys.executable).with_name("attngeo")
    printed = subprocess.run([script, "--version"], capture_output=True, text=True).stdout
    assert printed == run("--version").stdout == f"attngeo {attngeo.__version__}\n"


def test_scoring_every_kind_of_file_does_not_import_torch(minilm, smollm2):
    words = ["attngeo", "score", str(minilm), str(smollm2), "--published", "--layers", "0"]
    done = run_script(
        f"import sys; sys.argv = {words}\n"
        "from attngeo.cli import main\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "sys.exit('torch imported' if 'torch' in sys.modules else 0)"
    )
    assert done.returncode == 0, done.stderr


def test_json_rows_are_the_frame(minilm):
    table = attngeo.score(str(minilm))
    assert rows(minilm, "--heads") == table.frame.to_dicts()
    assert rows(minilm, minilm) == table.frame.filter(pl.col("head").is_null()).to_dicts()  # given twice, scored once


def test_every_format_to_a_file(tmp_path):
    encoder, content = attngeo.bundled("encoder"), {}
    for form in ("table", "json", "csv", "parquet", "latex", "markdown"):
        done = call("score", encoder, "--layers", "0-1", "--format", form, "--out", tmp_path / form)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        content[form] = (tmp_path / form).read_bytes()
    columns = attngeo.score(encoder, layers=0).frame.columns
    assert len(json.loads(content["json"])) == pl.read_csv(content["csv"]).height == 2
    assert pl.read_parquet(io.BytesIO(content["parquet"])).columns == columns
    assert content["latex"].decode().splitlines()[-1] == r"\end{tabular}"
    assert len(content["markdown"].decode().splitlines()) == 4 and str(encoder) in content["table"].decode()


def test_the_suffix_of_the_file_selects_the_format(tmp_path):
    given = ("score", attngeo.bundled("encoder"), "--layers", "0", "--out")
    call(*given, tmp_path / "scores.json")
    assert len(json.loads((tmp_path / "scores.json").read_text())) == 1
    out = tmp_path / "scores.xlsx"
    expected = f"--out {out}: expected a name ending in .csv, .json, .md, .parquet, .tex, .txt"
    assert error_line(call(*given, out)) == expected and not out.exists()
    assert call(*given, out, "--format", "csv").returncode == 0
    assert out.read_text().startswith("model,stack,layer")


@pytest.mark.parametrize("heads", [True, False])
def test_a_parquet_file_loads_as_a_score_table(tmp_path, heads):
    encoder, out = attngeo.bundled("encoder"), tmp_path / "scores.parquet"
    assert call("score", encoder, *["--heads"] * heads, "--out", out).stderr == f"attngeo: wrote {out}\n"
    assert attngeo.ScoreTable.load(out) == attngeo.score(encoder, heads=heads, frequencies=False)
    done = call("report", out, "--out", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr


def test_two_models_and_a_figure_of_any_format(tmp_path):
    models = [attngeo.bundled(name) for name in ("encoder", "decoder")]
    for suffix, signature in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        done = call("score", *models, "--no-nulls", "--figure", tmp_path / f"both.{suffix}")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"both.{suffix}").read_bytes().startswith(signature)
    assert f"{models[0]}  encoder" in done.stdout and f"{models[1]}  decoder" in done.stdout


def test_published_gives_the_percentile_of_a_new_model(minilm):
    row = rows(minilm, "--published")[0]
    assert row["population"].endswith("caution-free language encoder models")
    assert 0 <= row["model_symmetry_percentile"] <= 100
    done = call("score", minilm, "--published")
    assert "percentile of the median layer among" in done.stdout and "adds nothing" not in done.stderr


def test_published_says_where_it_adds_nothing(minilm):
    done = call("score", minilm, "--published", "--layers", "0-4", "--format", "json")
    assert done.returncode == 0 and json.loads(done.stdout)[0]["population"] is None
    assert "--published adds nothing: the model is not in the published tables" in done.stderr


def test_published_as_selects_the_published_model(minilm):
    layers = rows(minilm, "--published-as", "bert-base-uncased")
    expected = attngeo.published("google-bert/bert-base-uncased")["symmetry"].to_list()[:6]
    assert [row["symmetry_published"] for row in layers] == expected
    assert "nobody/knows" in error_line(call("score", minilm, "--published-as", "nobody/knows"))
    line = error_line(call("score", minilm, "--published-as", "gpt2"))
    assert "--published-as gpt2: no published layer corresponds to a layer of encoder" in line


def test_published_lists_and_filters():
    assert json.loads(call("published", "--model", "GPT2-xl", "--format", "json").stdout)[0]["layers"] == 48
    vision = json.loads(call("published", "--modality", "vision", "--no-caution", "--format", "json").stdout)
    assert {row["caution"] for row in vision} == {None}
    assert len(call("published", "--model", "gpt2-xl", "--layers", "--format", "csv").stdout.splitlines()) == 49
    assert error_line(call("published", "--family", "no such family")).startswith("no published model matches")
    lines = call("published", "--family", "pythia").stdout.splitlines()
    assert lines[0].split()[:2] == ["hub_id", "stack"] and lines[1] == "language  Pythia"
    assert lines[-1].startswith("[1] fused weight cut")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--format", "xml", "--format xml"),
        ("--format", "parquet", "--format parquet"),
        ("--layers", "five", "--layers five"),
        ("--layers", "77", "layers are numbered from 0 to 5"),
        ("--stack", "vision", "vision"),
        ("--out", "/no/such/folder/scores.csv", "/no/such/folder"),
        ("--figure", "scores.xcf", "--figure scores.xcf"),
        ("--device", "nonsense", "nonsense"),
    ],
)
def test_a_bad_option_gives_one_line(minilm, option, value, named):
    assert named in error_line(call("score", minilm, option, value))


def test_other_models_are_scored_when_one_cannot_be_read(minilm, tmp_path):
    done = call("score", tmp_path / "gone", minilm, "--format", "json")
    assert done.returncode == 1 and len(json.loads(done.stdout)) == 6
    assert done.stderr == f"attngeo: error: {tmp_path / 'gone'}: no such folder\n"
    out = ("--out", tmp_path / "scores.json", "--figure", tmp_path / "scores.png")
    done = call("score", tmp_path / "gone", tmp_path / "too", *out)
    assert (done.returncode, done.stderr.count("\n"), list(tmp_path.iterdir())) == (2, 2, [])


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in call("score", tmp_path / "gone", "--debug").stderr


def test_an_interrupt_ends_without_a_traceback(smollm2):
    many = [f"{smollm2.parent}/{'./' * i}{smollm2.name}" for i in range(60)]
    process = subprocess.Popen(
        [sys.executable, "-m", "attngeo", "score", "./gone", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # the error about ./gone says that scoring has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert first == "attngeo: error: ./gone: no such folder\n"
    assert (process.returncode, out) == (130, "") and "Traceback" not in err


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m attngeo published --layers --format csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("modality,family,hub_id") and done.stderr == ""


def test_frequencies_of_a_model_that_rotates(smollm2, tmp_path):
    done = call("score", smollm2, "--frequencies", "--layers", "0-1", "--figure", tmp_path / "pairs.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:4] == ["layer", "fast", "medium", "slow"] and max(map(len, lines[1:])) <= 100
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
    pairs = rows(smollm2, "--frequencies", "--layers", "0")
    assert len(pairs) == 9 * 32  # heads × pairs
    assert sum(row["energy"] for row in pairs if row["head"] == 0) == pytest.approx(1)


def test_frequencies_of_a_model_that_does_not_rotate(minilm, smollm2, tmp_path):
    line = error_line(call("score", minilm, "--frequencies", "--out", tmp_path / "pairs.csv"))
    assert line.startswith(f"{minilm}: --frequencies: ") and not list(tmp_path.iterdir())
    assert call("score", minilm, smollm2, "--frequencies", "--layers", "0").returncode == 1
    assert "--frequencies" in error_line(call("score", smollm2, "--frequencies", "--published"))


def test_a_device_gives_the_same_scores(minilm):
    plain, on_device = (rows(minilm, "--layers", "0", *option)[0] for option in ([], ["--device", "cpu"]))
    scores = [name for name, value in plain.items() if isinstance(value, float)]
    assert [on_device[name] for name in scores] == pytest.approx([plain[name] for name in scores], rel=1e-4, abs=1e-5)


# ---- attngeo coverage


def test_coverage_has_one_row_per_type_and_says_all_of_one() -> None:
    every = {row["type"]: row for row in json.loads(call("coverage", "--format", "json").stdout)}
    assert len(every) > 700 and {"bert", "gguf:llama", "diffusers:FluxTransformer2DModel"} <= set(every)
    assert every["bart"] == {
        "type": "bart", "status": "right", "reason": None, "stacks": "cross, decoder, encoder", "rotation": "none",
        "capture": "captured", "prune": "yes",
    }  # fmt: skip
    lines = call("coverage").stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(every)]] == list(every)
    one = dict(line.split(maxsplit=1) for line in call("coverage", "hiera").stdout.splitlines())
    assert one["status"] == "refused" and one["reason"] == every["hiera"]["reason"]
    assert json.loads(call("coverage", "FluxTransformer2DModel", "--format", "json").stdout) == [
        every["diffusers:FluxTransformer2DModel"]
    ]


def test_coverage_of_an_unknown_type_names_the_nearest_one() -> None:
    line = error_line(call("coverage", "Bart2"))
    assert line == "Bart2: no model type that was examined, the nearest is bart"
