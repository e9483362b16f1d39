"""The records of the experiment: reading logs, and the increase of the loss by method, share and refit."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]
Losses = NDArray[np.float64]  # [blocks]


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Return the records of log files (.jsonl, .jsonl.xz), and of those in folders."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl*")) if path.is_dir() else [path])]
    found = []
    for file in files:
        with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as lines:
            found += [json.loads(line) for line in lines]
    return found


@dataclass(frozen=True)
class Series:
    """The records of one model that were measured in the same way."""

    subject: str
    split: str = "fresh"
    tokens: int = 8192  # of calibration
    unit: str = "query"

    def increases(self, records: Sequence[Record], method: str, share: float, refit: bool) -> dict[int, Losses]:
        """Return the increase of the loss of each block of windows, mean over draws and seeds, by evaluation tokens."""
        full = {
            one["evaluation_tokens"]: np.array(one["losses"])
            for one in records
            if (one["subject"], one["split"], one["method"]) == (self.subject, self.split, "full")
        }
        wanted = {
            "subject": self.subject, "split": self.split, "tokens": self.tokens, "unit": self.unit,
            "method": method, "share": share, "refit": refit,
        }  # fmt: skip
        own = [one for one in records if wanted.items() <= one.items()]
        sizes = sorted({one["evaluation_tokens"] for one in own})
        return {
            size: np.mean([one["losses"] - full[size] for one in own if one["evaluation_tokens"] == size], 0)
            for size in sizes
        }

    def increase(self, records: Sequence[Record], method: str, share: float, refit: bool) -> float | None:
        """Return the mean increase of the loss on the most evaluation tokens; None: it was not measured."""
        found = self.increases(records, method, share, refit)
        return float(found[max(found)].mean()) if found else None


@dataclass(frozen=True)
class Ratio:
    """The ratio of two mean increases, and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.0%} [{100 * self.low:.0f}, {100 * self.high:.0f}]".replace("-", "−")


def ratio(ours: dict[int, Losses], theirs: dict[int, Losses], draws: int = 4000, seed: int = 0) -> Ratio | None:
    """Return the ratio of two increases on the same blocks, which are resampled in pairs.

    None: no common blocks, or an increase to divide by that is not above 0 beyond its own interval
    """
    common = ours.keys() & theirs.keys()
    if not common:
        return None
    one, other = ours[max(common)], theirs[max(common)]
    picks = np.random.default_rng(seed).integers(0, len(one), (draws, len(one)))
    if np.quantile(other[picks].mean(1), 0.025) <= 0:
        return None
    low, high = np.quantile(one[picks].mean(1) / other[picks].mean(1), (0.025, 0.975))
    return Ratio(float(one.mean() / other.mean()), float(low), float(high))
