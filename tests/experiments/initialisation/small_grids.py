"""Grids so small that a run takes a fraction of a second, and the tokens for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.training.data.tokens import prepare_tokens
from experiments.initialisation.grid import Cell, custom_grid
from experiments.initialisation.run import run_grid
from tests.training.small_runs import SETTINGS, write_corpus

SMALL = {key: SETTINGS[key] for key in ("heads", "length", "batch", "evaluations", "warmup")}


def prepare_small_tokens(folder: Path) -> Path:
    """Prepare tokens in `folder`/tokens and return that path."""
    prepare_tokens(folder / "tokens", [write_corpus(folder)], vocabulary=300)
    return folder / "tokens"


def small_grid(
    starts: tuple[str, ...] = ("baseline", "unit symmetric"), seeds: int = 2, settings: dict[str, str] | None = None,
    **other: Any,
) -> tuple[Cell, ...]:  # fmt: skip
    """Return a grid of runs of 20 steps of a model of 2 layers of width 32; settings: beside the small ones."""
    return custom_grid(starts, (1e-3,), seeds, SMALL | (settings or {}), **{"steps": 20, "size": "2x32", **other})


def run_in(folder: Path, cells: tuple[Cell, ...], name: str = "runs.jsonl.xz", **options: Any) -> tuple[int, list[str]]:
    """Run cells on `folder`/tokens into the results `folder`/name; return the runs left and the lines printed."""
    lines: list[str] = []
    left = run_grid(cells, folder / "tokens", folder / name, work=folder / "work", say=lines.append, **options)
    return left, lines
