"""The console examples of the README and of docs/scores.md show what the commands really print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/scores.md")


def console_examples() -> list[tuple[str, str]]:
    """Return each command of the pages, without `organize`, which takes long, and the lines below it."""
    examples: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S):
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
                if command.startswith("attngeo ") and not command.startswith("attngeo organize"):
                    examples[command] = output
    return list(examples.items())


def test_the_pages_have_examples() -> None:
    assert len(console_examples()) >= 5


@pytest.mark.parametrize(("command", "output"), console_examples(), ids=[command for command, _ in console_examples()])
def test_an_example_shows_the_real_output(models: Path, command: str, output: str) -> None:
    script = re.sub(r"^attngeo ", f"{sys.executable} -m attngeo ", command)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=models.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert done.stdout == output
