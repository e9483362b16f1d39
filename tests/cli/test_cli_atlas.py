"""`attngeo atlas`: what it prints, exit codes, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import attngeo
from tests.atlas.small_models import make_models
from tests.cli.commands import call, error_line
from tests.weights.sources.hub_server import HubServer


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return call("atlas", *arguments)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return make_models(tmp_path / "models", 3)


@pytest.fixture
def folder(tmp_path: Path, models: list[Path]) -> Path:
    attngeo.Atlas(tmp_path / "atlas").add([*models, tmp_path / "missing"], workers=0)
    return tmp_path / "atlas"


def test_add_takes_references_and_lists(tmp_path: Path, models: list[Path]) -> None:
    listed = tmp_path / "models.txt"
    listed.write_text(f"# two models\n{models[1]}\n{models[2]}\n")
    done = run("add", tmp_path / "atlas", models[0], "--list", listed, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "3 scored, 0 linked" in done.stderr
    done = run("add", tmp_path / "atlas", *models)
    assert done.returncode == 0 and "3 known before, 0 failed" in done.stderr


def test_failures_set_the_exit_code(tmp_path: Path, models: list[Path]) -> None:
    atlas = tmp_path / "atlas"
    done = run("add", atlas, tmp_path / "none", "--workers", 0)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"attngeo: failed: {tmp_path / 'none'}: no such folder"
    assert "--retry" in done.stderr
    assert run("add", atlas, tmp_path / "none", models[0], "--workers", 0).returncode == 1
    models[1].rename(tmp_path / "none")
    assert run("add", atlas, tmp_path / "none", "--workers", 0).returncode == 2
    assert run("add", atlas, tmp_path / "none", "--workers", 0, "--retry").returncode == 0


def test_status(folder: Path) -> None:
    done = run("status", folder, "--failures")
    first, *others = done.stdout.splitlines()
    assert first.startswith(f"{folder}: 3 models, 1 failure, 3 parts, ")
    assert others[0].split() == ["model", "options", "kind", "message"] and "SourceError" in others[1]


def test_query_and_export(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    done = run("query", folder, "select model_type, count(*) as rows from scores group by 1 order by 1")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["model_type", "rows"], ["bert", "10"], ["gpt2", "10"], ["gpt_neox", "10"],
    ]  # fmt: skip
    done = run("query", folder, "select model_type from models order by 1", "--format", "json")
    assert [row["model_type"] for row in json.loads(done.stdout)] == ["bert", "gpt2", "gpt_neox"]
    assert run("export", folder, "--out", tmp_path / "all.parquet").returncode == 0
    assert pl.read_parquet(tmp_path / "all.parquet").equals(attngeo.Atlas(folder).frame())
    assert run("export", folder, "--format", "csv").stdout.count("\n") == 31
    assert "SourceError" in run("export", folder, "--table", "failures").stdout


def test_organize_prints_means_over_texts(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The heads of a layer read the same text.\n\nEach of them looks for something else in it.\n")
    arguments = ("organize", tmp_path / "atlas", attngeo.bundled("encoder"), "--texts", texts)
    done = run(*arguments, "--invariance", 0, "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("2 results computed, 0 known before, 0 failed\n")
    assert ", 2 results of networks on texts, " in run("status", tmp_path / "atlas").stdout
    assert "encoder: organized, 2 texts\n" in done.stdout and "encoder: agreement, 1 pair of texts" in done.stdout
    exported = run("export", tmp_path / "atlas", "--table", "summary", "--format", "csv")
    assert exported.returncode == 0 and ",gain,2," in exported.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["add", "NEW"], "no models named"),
        (["add", "NEW", "--list", "LIST"], "list.txt: line 2: 'not a model': no such folder, and not a hub id"),
        (["add", "NEW", "org/name", "--ray", "127.0.0.1:1"], "no Ray answers at 127.0.0.1:1 (Connection refused)"),
        (["add", "NEW", "org/name", "--ray=somewhere"], "somewhere: not the address of a Ray, expected HOST:PORT"),
        (["add", "OTHER", "org/name"], "is not an atlas"),
        (["add", "NEW", "--revisions", "org/name@v1"], "names one revision"),
        (["organize", "NEW", "org/name"], "--texts: missing"),
        (["organize", "NEW", "org/name", "--texts", "EMPTY"], "empty.txt: no texts, expected one per line"),
        (["plot", "ATLAS"], "--figure: missing"),
        (["plot", "ATLAS", "--figure", "x.png", "--x", "nothing"], "nothing: not a column of scores"),
        (["published", "ATLAS"], "holds no published model"),
        (["export", "ATLAS", "--table", "nothing"], "--table nothing: expected one of scores"),
        (["status", "NEW"], "no such folder"),
        (["status", "NEWER"], "version is 99, expected 1; update attngeo"),
        (["query", "ATLAS", "select"], "SQL: "),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arguments[0] == "query":
        pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("org/name\nnot a model\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "attngeo-atlas.json").write_text('{"kind": "atlas", "version": 99}')
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    places = {
        "NEW": "new",
        "LIST": "list.txt",
        "OTHER": "models",
        "NEWER": "newer",
        "ATLAS": "atlas",
        "EMPTY": "empty.txt",
    }
    assert message in error_line(run(*(places.get(argument, argument) for argument in arguments)))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob("x.*"))


@pytest.mark.slow
def test_another_program_answers_where_a_ray_is_expected(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with HubServer({}) as other:
        address = other.url.removeprefix("http://")
        command = [sys.executable, "-m", "attngeo", "atlas", "add", tmp_path / "atlas", "org/name", "--ray", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert error_line(done).startswith("no Ray answers at 127.0.0.1:")
