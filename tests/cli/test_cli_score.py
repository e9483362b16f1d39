"""`attngeo score` and `attngeo published` as a user runs them: real processes, real models, exit codes, streams."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import attngeo
from tests.applications.compare.llama_pairs import random_model, save_model


def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `attngeo ARGUMENTS` offline, with both streams piped."""
    return subprocess.run(
        [sys.executable, "-m", "attngeo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
    )


def rows(*arguments: object) -> list[dict]:
    """Return the rows that `attngeo score ARGUMENTS` prints as JSON."""
    done = run("score", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version_and_help():
    assert run("--version").stdout == f"attngeo {attngeo.__version__}\n"
    assert "score" in run("--help").stdout
    assert "--published" in run("score", "--help").stdout
    assert run("no-such-command").returncode == 2


def test_help_and_scoring_do_not_import_torch(minilm, smollm2):
    for arguments in (["--help"], ["score", str(minilm), str(smollm2), "--published"]):
        script = (
            f"import sys; sys.argv = ['attngeo', *{arguments!r}]\n"
            "from attngeo.cli import main\n"
            "try: main()\n"
            "except SystemExit as done: assert not done.code, done.code\n"
            "sys.exit('torch imported' if 'torch' in sys.modules else 0)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_importing_the_command_line_loads_no_large_library():
    heavy = "{'numpy', 'polars', 'matplotlib', 'scipy', 'rich', 'huggingface_hub'}"
    script = f"import sys, attngeo.cli; sys.exit(','.join({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr.strip() == ""


def test_a_piped_table_is_plain_text(minilm):
    done = run("score", minilm)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == f"{minilm}  encoder"
    assert lines[1].split()[:2] == ["layer", "symmetry"]
    assert [line.split()[0] for line in lines[2:8]] == list("012345")
    assert lines[-1].startswith("z: ")  # the legend


def test_forms_without_a_score_are_named_once(tmp_path):
    tensors = random_model(0, layers=2)
    name = "model.layers.1.self_attn.q_proj.weight"
    model = save_model(tmp_path / "model", tensors | {name: np.zeros_like(tensors[name])})
    done = run("score", model, "--out", tmp_path / "scores.json")
    text = f"{model}: no score where the query, the key or their product is zero: L1"
    assert done.returncode == 0
    assert done.stderr == f"attngeo: {text}\nattngeo: wrote {tmp_path / 'scores.json'}\n"


def test_json_rows_are_the_frame(minilm):
    table = attngeo.score(str(minilm))
    assert rows(minilm, "--heads") == table.frame.to_dicts()
    assert rows(minilm) == table.frame.filter(pl.col("head").is_null()).to_dicts()


def test_heads_of_a_decoder_with_grouped_keys(smollm2):
    heads = [row for row in rows(smollm2, "--heads", "--layers", "0-1,29") if row["head"] is not None]
    assert {row["layer"] for row in heads} == {0, 1, 29}
    assert {row["stack"] for row in heads} == {"decoder"}
    assert [row["head"] for row in heads if row["layer"] == 29] == list(range(9))


@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet", "latex", "markdown"])
def test_every_format_to_a_file(minilm, tmp_path, form):
    out = tmp_path / "scores"
    done = run("score", minilm, "--layers", "0-1", "--format", form, "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    content = out.read_bytes()
    if form == "json":
        assert len(json.loads(content)) == 2
    elif form == "csv":
        assert pl.read_csv(content).height == 2
    elif form == "parquet":
        assert pl.read_parquet(io.BytesIO(content)).columns == attngeo.score(str(minilm)).frame.columns
    elif form == "latex":
        assert content.decode().splitlines()[-1] == r"\end{tabular}"
    elif form == "markdown":
        assert len(content.decode().splitlines()) == 4
    else:
        assert str(minilm) in content.decode()


def test_the_suffix_of_the_file_selects_the_format(minilm, tmp_path):
    run("score", minilm, "--layers", "0", "--out", tmp_path / "scores.json")
    assert len(json.loads((tmp_path / "scores.json").read_text())) == 1


def test_a_suffix_without_a_format_needs_one(minilm, tmp_path):
    out = tmp_path / "scores.xlsx"
    done = run("score", minilm, "--layers", "0", "--out", out)
    expected = f"attngeo: error: --out {out}: expected a name ending in .csv, .json, .md, .parquet, .tex, .txt\n"
    assert (done.returncode, done.stderr) == (2, expected) and not out.exists()
    assert run("score", minilm, "--layers", "0", "--format", "csv", "--out", out).returncode == 0
    assert out.read_text().startswith("model,stack,layer")


@pytest.mark.parametrize("heads", [True, False])
def test_a_parquet_file_loads_as_a_score_table(minilm, tmp_path, heads):
    done = run("score", minilm, *(["--heads"] if heads else []), "--out", tmp_path / "scores.parquet")
    assert done.stderr == f"attngeo: wrote {tmp_path / 'scores.parquet'}\n"
    assert attngeo.ScoreTable.load(tmp_path / "scores.parquet") == attngeo.score(minilm, heads=heads, frequencies=False)
    done = run("report", tmp_path / "scores.parquet", "--out", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr


def test_a_folder_whose_name_is_not_text_is_one_line(minilm, tmp_path):
    link = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.symlink(os.fsencode(minilm), link)
    done = run("score", os.fsdecode(link))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("is not valid UTF-8, expected another name: model= or a link to it\n")
    assert done.stderr.count("\n") == 1


def test_two_models_and_a_figure(minilm, smollm2, tmp_path):
    done = run("score", minilm, smollm2, "--figure", tmp_path / "both.png")
    assert done.returncode == 0, done.stderr
    assert f"{minilm}  encoder" in done.stdout
    assert f"{smollm2}  decoder" in done.stdout
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_published_gives_the_percentile_of_a_new_model(minilm):
    row = rows(minilm, "--published")[0]
    assert row["population"].endswith("caution-free language encoder models")
    assert 0 <= row["model_symmetry_percentile"] <= 100
    assert "percentile of the median layer among" in run("score", minilm, "--published").stdout
    assert rows(minilm, "--published", "--layers", "0-4")[0]["population"] is None


def test_published_says_where_it_adds_nothing(minilm):
    assert "adds nothing" not in run("score", minilm, "--published").stderr
    done = run("score", minilm, "--published", "--layers", "0-4")
    assert done.returncode == 0 and "--published adds nothing: the model is not in the published tables" in done.stderr


def test_published_as_selects_the_published_model(minilm):
    layers = rows(minilm, "--published-as", "bert-base-uncased")
    expected = attngeo.published("google-bert/bert-base-uncased")["symmetry"].to_list()[:6]
    assert [row["symmetry_published"] for row in layers] == expected
    done = run("score", minilm, "--published-as", "nobody/knows")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    done = run("score", minilm, "--published-as", "gpt2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--published-as gpt2: no published layer corresponds to a layer of encoder" in done.stderr


def test_published_lists_and_filters():
    assert json.loads(run("published", "--model", "GPT2-xl", "--format", "json").stdout)[0]["layers"] == 48
    vision = json.loads(run("published", "--modality", "vision", "--no-caution", "--format", "json").stdout)
    assert {row["caution"] for row in vision} == {None}
    assert len(run("published", "--model", "gpt2-xl", "--layers", "--format", "csv").stdout.splitlines()) == 49
    done = run("published", "--family", "no such family")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    lines = run("published", "--family", "pythia").stdout.splitlines()
    assert lines[0].split()[:2] == ["hub_id", "stack"] and lines[1] == "language  Pythia"
    assert lines[-1].startswith("[1] fused weight cut")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "xml"],
        ["--format", "parquet"],
        ["--layers", "five"],
        ["--layers", "5-2"],
        ["--layers", "77"],
        ["--stack", "vision"],
        ["--num-heads", "7"],
        ["--out", "/no/such/folder/scores.csv"],
        ["--figure", "/no/such/folder/scores.png"],
        ["--figure", "scores.xcf"],
        ["--device", "nonsense"],
    ],
    ids=" ".join,
)
def test_a_bad_option_gives_one_line(minilm, arguments):
    done = run("score", minilm, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("attngeo: error: ")
    assert done.stderr.count("\n") == 1
    assert arguments[-1] in done.stderr or arguments[0][2:] in done.stderr or "num_heads" in done.stderr


def test_other_models_are_scored_when_one_cannot_be_read(minilm, tmp_path):
    done = run("score", tmp_path / "gone", minilm, "--format", "json")
    assert done.returncode == 1
    assert len(json.loads(done.stdout)) == 6
    assert done.stderr == f"attngeo: error: {tmp_path / 'gone'}: no such folder\n"
    out = tmp_path / "scores.json"
    done = run("score", tmp_path / "gone", tmp_path / "too", "--out", out, "--figure", tmp_path / "scores.png")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in run("score", tmp_path / "gone", "--debug").stderr


def test_a_model_given_twice_is_scored_once(minilm):
    assert len(rows(minilm, minilm)) == 6


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
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == ""


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m attngeo published --layers --format csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("modality,family,hub_id")
    assert done.stderr == ""


def test_the_module_and_the_script_are_the_same_command():
    script = Path(sys.executable).with_name("attngeo")
    assert subprocess.run([script, "--version"], capture_output=True, text=True).stdout == run("--version").stdout


def test_frequencies_of_a_model_that_rotates(smollm2, tmp_path):
    done = run("score", smollm2, "--frequencies", "--layers", "0-1", "--figure", tmp_path / "pairs.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:4] == ["layer", "fast", "medium", "slow"]
    assert max(map(len, lines[1:])) <= 100
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
    pairs = rows(smollm2, "--frequencies", "--layers", "0")
    assert len(pairs) == 9 * 32  # heads × pairs
    assert sum(row["energy"] for row in pairs if row["head"] == 0) == pytest.approx(1)


def test_frequencies_of_a_model_that_does_not_rotate(minilm, smollm2, tmp_path):
    done = run("score", minilm, "--frequencies", "--out", tmp_path / "pairs.csv")
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr.startswith(f"attngeo: error: {minilm}: --frequencies: ")
    assert done.stderr.count("\n") == 1
    assert run("score", minilm, smollm2, "--frequencies", "--layers", "0").returncode == 1
    done = run("score", smollm2, "--frequencies", "--published")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_device_gives_the_same_scores(minilm):
    pytest.importorskip("torch")
    plain, on_device = (rows(minilm, "--heads", "--layers", "0", *option) for option in ([], ["--device", "cpu"]))
    for one, other in zip(plain, on_device, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), (
                name
            )
