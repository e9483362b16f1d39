"""Compare starts over paired runs: final loss, steps saved, and how sure one can be of either."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attngeo.dynamics.cells import Cell
from attngeo.errors import SourceError


@dataclass(frozen=True)
class Finished:
    """A finished run of the grid with its records, one per evaluation."""

    cell: Cell
    records: tuple[dict[str, Any], ...]
    facts: dict[str, Any]  # device, versions, seconds

    @property
    def loss(self) -> float:
        return float(self.records[-1]["eval_loss"])

    def line(self) -> str:
        return json.dumps({"cell": asdict(self.cell), "facts": self.facts, "records": self.records},
                          separators=(",", ":")) + "\n"  # fmt: skip


def append_run(path: Path, run: Finished) -> None:
    """Add a run to a compressed file: one gzip member each, so that nothing before it is touched."""
    with open(path, "ab") as file:
        file.write(gzip.compress(run.line().encode(), mtime=0))


def read_runs(paths: Iterable[Path]) -> list[Finished]:
    """The finished runs in these files and folders (`*.jsonl.gz`), each cell once."""
    found: dict[str, Finished] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path]:
            try:
                with gzip.open(file, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        row = json.loads(line)
                        run = Finished(Cell(**row["cell"]), tuple(row["records"]), row["facts"])
                        found.setdefault(run.cell.key, run)
            except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
                raise SourceError(f"{file}: not a file of finished runs ({error})") from error
    return list(found.values())


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
    detectable: float  # smallest difference found with 80% power at the 5% level, at this spread


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
    detectable = (quantile + float(stats.t.ppf(0.8, n - 1))) * error
    return Mean(mean, mean - quantile * error, mean + quantile * error, p, detectable)


@dataclass(frozen=True)
class Compared:
    """A start against the baseline over the seeds both have."""

    cell: Cell  # of the first seed
    seeds: tuple[int, ...]
    losses: tuple[float, ...]
    difference: Mean | None  # of the final loss, start − baseline; None for the baseline itself
    saved: Mean | None  # share of the steps saved; a target never reached counts as 0
    reached: int  # seeds that reached the baseline's final loss


def compare(runs: Iterable[Finished]) -> list[Compared]:
    """Every start of every setting against the baseline of the same setting and seed."""
    groups: dict[tuple[Any, ...], dict[int, Finished]] = {}
    for run in runs:
        groups.setdefault((*run.cell.setting, run.cell.start), {})[run.cell.seed] = run
    table = []
    for (*setting, start), mine in sorted(groups.items(), key=lambda item: tuple(map(str, item[0][:4]))):
        base = groups.get((*setting, "baseline"), {})
        seeds = sorted(set(mine) & set(base)) or sorted(mine)
        losses = tuple(mine[seed].loss for seed in seeds)
        difference = saved = None
        reached = 0
        if start != "baseline" and set(seeds) <= set(base):
            difference = mean_of([mine[seed].loss - base[seed].loss for seed in seeds])
            ups = [speed_up(mine[seed].records, base[seed].loss) for seed in seeds]
            reached = sum(up is not None for up in ups)
            saved = mean_of([up or 0.0 for up in ups])
        table.append(Compared(mine[seeds[0]].cell, tuple(seeds), losses, difference, saved, reached))
    return table


def as_text(table: Sequence[Compared]) -> str:
    """A plain table, one line per start and setting."""
    head = ("setting", "start", "seeds", "final loss", "difference [95%]", "p", "detectable", "steps saved [95%]")
    rows: list[Sequence[str]] = [head]
    for one in table:
        c = one.cell
        loss = f"{math.fsum(one.losses) / len(one.losses):.4f}"
        row = [f"{c.objective} {c.size} lr {c.lr:g} {c.steps} steps", c.start, str(len(one.seeds)), loss]
        if one.difference is None or one.saved is None:
            row += ["", "", "", ""]
        else:
            d, s = one.difference, one.saved
            if len(one.seeds) > 1:
                row += [f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]", f"{d.p:.2g}", f"{d.detectable:.4f}",
                        f"{s.mean:.0%} [{s.low:.0%}, {s.high:.0%}]"]  # fmt: skip
            else:
                row += [f"{d.mean:+.4f}", "", "", f"{s.mean:.0%}"]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
