"""The console examples of the README and of docs/scores.md show what the commands really print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/scores.md")
MADE = ("sd3-tiny", "pipeline")  # models that an example of the page makes


def blocks(language: str) -> list[str]:
    """Return the code blocks of the pages in one language."""
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def console_examples(made: bool) -> list[tuple[str, str]]:
    """Return each command and the lines below it: of models that are made, or of all others.

    `organize` is left out, because it takes long.
    """
    examples: dict[str, str] = {}
    for block in blocks("console"):
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            tested = command.startswith("attngeo ") and not command.startswith("attngeo organize")
            if tested and made == any(name in command.split() for name in MADE):
                examples[command] = output
    return list(examples.items())


def printed(command: str, folder: Path) -> str:
    """Return what a command prints in a folder, both streams together."""
    script = re.sub(r"^attngeo ", f"{sys.executable} -m attngeo ", command)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(["bash", "-c", script], cwd=folder, text=True, env=environment, **streams).stdout


def test_the_pages_have_examples() -> None:
    assert len(console_examples(made=False)) >= 5
    assert len(console_examples(made=True)) == len(MADE)


@pytest.mark.parametrize(
    ("command", "output"), console_examples(made=False), ids=[command for command, _ in console_examples(made=False)]
)
def test_an_example_shows_the_real_output(models: Path, command: str, output: str) -> None:
    assert printed(command, models.parent) == output


def example_of(name: str) -> tuple[str, str]:
    """Return the command about one of the models in `MADE`, and its output."""
    (example,) = [(command, output) for command, output in console_examples(made=True) if name in command.split()]
    return example


def test_the_example_of_a_pipeline(tmp_path: Path) -> None:
    parts = ("text_encoder", "unet")
    for name in parts:
        (tmp_path / "pipeline" / name).mkdir(parents=True)
        (tmp_path / "pipeline" / name / "model.safetensors").touch()
    index = {"_class_name": "P"} | {name: ["diffusers", "M"] for name in parts}
    (tmp_path / "pipeline" / "model_index.json").write_text(json.dumps(index))
    command, output = example_of("pipeline")
    assert printed(command, tmp_path) == output


@pytest.mark.slow  # importing diffusers takes long
def test_the_example_of_a_model_that_the_page_makes(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (script,) = [block for block in blocks("python") if "sd3-tiny" in block]
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    command, output = example_of("sd3-tiny")
    assert printed(command, tmp_path) == output
