"""A corpus and settings so small that a whole pre-training run takes a fraction of a second."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "size": "2x32",
    "heads": 2,
    "vocab": 300,
    "length": 32,
    "batch": 8,
    "steps": 20,
    "evaluations": 5,
    "checkpoints": 5,
    "warmup": 4,
    "lr": 1e-3,
}


def made_up_texts(count: int = 300, seed: int = 0) -> list[str]:
    """Return documents of made-up words, some of which are far more common than others."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 6))) for _ in range(150)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(draw.choices(words, weights, k=40)) for _ in range(count)]


def write_corpus(folder: Path, name: str = "corpus.txt", **texts: Any) -> str:
    """Write made-up documents to a text file and return its path."""
    path = folder / name
    path.write_text("\n\n".join(made_up_texts(**texts)), "utf-8")
    return str(path)


def run_settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run in `folder`/run on the corpus in `folder`, which is written if it is missing."""
    file = folder / "corpus.txt"
    train = str(file) if file.exists() else write_corpus(folder)
    return {"out": str(folder / "run"), "tokens": str(folder / "tokens"), "train": [train], **SETTINGS, **changes}


def write_toml(path: Path, table: Mapping[str, Any]) -> Path:
    """Write settings as a config file and return its path."""
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in table.items()), "utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def start_python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start `python ARGUMENTS` in a process of its own, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def without_speed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without the one number that differs between equal runs."""
    return [{key: value for key, value in row.items() if key != "steps_per_second"} for row in rows]
