"""The grid of the initialisation experiment: which starts, learning rates and seeds, as a table of paired runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from attngeo.dynamics.config import PretrainConfig, checked
from attngeo.errors import InputError


@dataclass(frozen=True)
class Cell:
    """One run of the grid; cells that differ only in `start` are paired."""

    start: str  # as in configs; "unit " before it: at std 1/√d
    lr: float
    seed: int
    steps: int = 9_500
    size: str = "4x256"
    objective: str = "masked"

    @property
    def key(self) -> str:
        """A name for the run, also of files."""
        start = self.start.replace(" ", "-")
        return f"{self.objective}-{self.size}-lr{self.lr:g}-{self.steps}-{start}-seed{self.seed}"

    @property
    def setting(self) -> tuple[str, str, float, int]:
        """What a run and its baseline share."""
        return self.objective, self.size, self.lr, self.steps

    def config(self, out: str, tokens: str, **other: Any) -> PretrainConfig:
        unit = self.start.startswith("unit ")
        settings: dict[str, Any] = {
            "out": out,
            "tokens": tokens,
            "objective": self.objective,
            "size": self.size,
            "start": self.start.removeprefix("unit "),
            "scale": "unit" if unit else None,
            "lr": self.lr,
            "steps": self.steps,
            "seed": self.seed,
            "checkpoints": 0,  # only where a slice of time ends
            "keep_model": False,
            **other,
        }
        return checked(PretrainConfig(**settings))


def grid(starts: Iterable[str], rates: Iterable[float], seeds: Iterable[int], **other: Any) -> tuple[Cell, ...]:
    """Seed by seed, so that whatever is finished can be compared."""
    starts, rates = tuple(starts), tuple(rates)
    return tuple(Cell(start, lr, seed, **other) for seed in seeds for lr in rates for start in starts)


_CORE = ("baseline", "symmetric", "unit independent", "unit symmetric", "authors")
_MIMETIC = ("mimetic-0.3", "mimetic-0.7", "mimetic-0.3-value", "mimetic-0.7-value")
_BEST = ("baseline", "unit symmetric", "authors")
GROUPS: dict[str, tuple[Cell, ...]] = {
    "pilot": grid(("baseline", "unit symmetric"), (5e-4,), (0,)),
    "core": grid(_CORE, (5e-4, 2e-4), range(3)),
    "mimetic-scan": grid(_MIMETIC, (5e-4,), (0,)),
    "mimetic": grid(_MIMETIC, (5e-4, 2e-4), range(3)),
    "controls": grid(("unit rotated", "unit self-attending", "unit skewed", "unit negative"), (5e-4,), range(3)),
    "more-seeds": grid(_BEST, (5e-4, 2e-4), (3, 4)),
    "slow": grid(_BEST, (5e-5,), (0,), steps=21_000),
    "large": grid(("baseline", "unit independent", "unit symmetric"), (2e-4,), range(3), steps=2_300, size="12x768"),
    "causal": grid(("baseline", "unit symmetric"), (5e-4,), range(3), objective="causal"),
}


def cells(groups: Iterable[str], starts: Iterable[str] | None = None) -> tuple[Cell, ...]:
    """The cells of these groups, each once, in order; only these starts where they are given."""
    found: dict[str, Cell] = {}
    wanted = None if starts is None else set(starts)
    for group in groups:
        if group not in GROUPS:
            near = get_close_matches(group, GROUPS, 1)
            hint = f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(GROUPS)}"
            raise InputError(f"group {group!r} does not exist{hint}")
        found |= {cell.key: cell for cell in GROUPS[group] if wanted is None or cell.start in wanted}
    return tuple(found.values())
