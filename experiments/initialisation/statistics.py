"""Compare starts over paired runs: final loss, steps saved, and how sure one can be of either."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError, reason
from attngeo.io.atomic import write_errors, write_file
from experiments.initialisation.grid import Cell


@dataclass(frozen=True)
class Finished:
    """A run of the grid that needs no more steps, with its records, one per evaluation."""

    cell: Cell
    records: tuple[dict[str, Any], ...]
    # Device, versions, seconds, digest of its tokens; `diverged`: the step at which the loss was no number any more.
    facts: dict[str, Any]

    @property
    def loss(self) -> float:
        """Held-out loss at the last evaluation."""
        return float(self.records[-1]["eval_loss"])

    @property
    def diverged(self) -> int | None:
        step: int | None = self.facts.get("diverged")
        return step

    def line(self) -> str:
        cell = {key: value for key, value in asdict(self.cell).items() if key != "other" or value}
        return json.dumps({"cell": cell, "facts": self.facts, "records": self.records}, separators=(",", ":")) + "\n"


def append_run(path: Path, run: Finished) -> None:
    """Add a run to a compressed file, one xz stream each; the file is replaced whole, so a kill loses nothing."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        write_file(path, before + lzma.compress(run.line().encode()))


def read_runs(paths: Iterable[Path]) -> list[Finished]:
    """The finished runs in these files and folders (`*.jsonl.xz`), each cell once."""
    found: dict[str, Finished] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl.xz")) if path.is_dir() else [path]:
            try:
                with lzma.open(file, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        row = json.loads(line)
                        run = Finished(_cell(row["cell"]), tuple(row["records"]), row["facts"])
                        found.setdefault(run.cell.key, run)
            except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
                raise SourceError(f"{file}: not a file of finished runs ({reason(error)})") from error
    return list(found.values())


def _cell(row: dict[str, Any]) -> Cell:
    other = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in row.pop("other", ()))
    return Cell(**row, other=other)


def speed_up(records: Sequence[dict[str, Any]], target: float) -> float | None:
    """1 − (first evaluated step with a loss at or below `target`)/(all steps); None where it is never reached."""
    last = records[-1]["step"]
    first = next((record["step"] for record in records if record["eval_loss"] <= target), None)
    return None if first is None else 1 - first / last


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95% interval, the two-sided p-value of being 0, and what these seeds could show."""

    mean: float
    low: float
    high: float
    p: float
    detectable: float  # smallest true difference that a test at the 5% level finds 4 times of 5, at this spread


def mean_of(values: Sequence[float]) -> Mean:
    """Student's t over independent seeds; with one value there is no interval (NaN)."""
    from scipy import stats

    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Mean(mean, math.nan, math.nan, math.nan, math.nan)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    quantile = float(stats.t.ppf(0.975, n - 1))
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else (0.0 if mean else 1.0)
    return Mean(mean, mean - quantile * error, mean + quantile * error, p, noncentrality(n) * error)


@cache
def noncentrality(n: int, power: float = 0.8) -> float:
    """Difference λ, in standard errors, that a paired t-test of n at the 5% level finds with this power.

    P(|Z + λ| > t·R) = power, Z normal, R = √(χ²/(n−1)) the estimated error over the true one, t the 97.5% point of
    Student's distribution with n − 1 degrees of freedom.
    """
    import numpy as np
    from scipy import integrate, optimize, special, stats

    freedom = n - 1
    quantile = float(stats.t.ppf(0.975, freedom))
    r = np.linspace(0.0, 12.0, 4001)
    density = stats.chi.pdf(r * math.sqrt(freedom), freedom) * math.sqrt(freedom)

    def short(at: float) -> float:
        found = special.ndtr(at - quantile * r) + special.ndtr(-at - quantile * r)
        return float(integrate.simpson(found * density, x=r)) - power

    return float(optimize.brentq(short, 0.5, 8 * quantile))


@dataclass(frozen=True)
class Compared:
    """A start against another, the baseline as a rule, over the seeds both have."""

    cell: Cell  # of the first seed
    seeds: tuple[int, ...]
    losses: tuple[float, ...]
    difference: Mean | None  # of the final loss, start − baseline; None for the baseline itself and without one
    saved: Mean | None  # share of the steps saved; a target never reached counts as 0
    reached: int  # seeds that reached the baseline's final loss
    diverged: tuple[tuple[int, int], ...]  # (seed, step) of runs that ended without a loss; in no mean
    against: str = "baseline"  # the start that is called baseline above

    @property
    def loss(self) -> float:
        return math.fsum(self.losses) / len(self.losses) if self.losses else math.nan


def compare(runs: Iterable[Finished], against: str = "baseline") -> list[Compared]:
    """Every start of every setting against the baseline, or another start, of the same setting and seed."""
    groups: dict[tuple[Any, ...], dict[int, Finished]] = {}
    for run in runs:
        groups.setdefault((*run.cell.setting, run.cell.start), {})[run.cell.seed] = run
    table = []
    for (*setting, start), all_mine in sorted(groups.items(), key=_order):
        mine, base = _ended(all_mine), _ended(groups.get((*setting, against), {}))
        seeds = sorted(set(mine) & set(base)) or sorted(mine)
        difference = saved = None
        reached = 0
        if start != against and seeds and set(seeds) <= set(base):
            difference = mean_of([mine[seed].loss - base[seed].loss for seed in seeds])
            ups = [speed_up(mine[seed].records, base[seed].loss) for seed in seeds]
            reached = sum(up is not None for up in ups)
            saved = mean_of([up or 0.0 for up in ups])
        losses = tuple(mine[seed].loss for seed in seeds)
        diverged = tuple((seed, run.diverged) for seed, run in sorted(all_mine.items()) if run.diverged is not None)
        cell = all_mine[min(all_mine)].cell
        table.append(Compared(cell, tuple(seeds), losses, difference, saved, reached, diverged, against))
    return table


def _order(group: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    """By setting, the usual ones and the baseline first, the other starts as they came."""
    *setting, other, start = group[0]
    return *setting, len(other), str(other), start != "baseline"


def _ended(runs: dict[int, Finished]) -> dict[int, Finished]:
    return {seed: run for seed, run in runs.items() if run.diverged is None}
