"""The grid of the initialisation experiment: initialisations × learning rates × seeds, as a table of paired runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from attngeo.dynamics.initialisation.by_name import check_initialisation
from attngeo.dynamics.pretraining.config import RESULT_NEUTRAL, PretrainConfig, load_config
from attngeo.errors import InputError

# Settings that may replace the usual ones of a grid; all others are fixed by the grid or its tokens. Those that change
# the result of a run become part of its cell.
_SETTABLE = ("batch", "betas", "checkpoints", "clip", "compile", "evaluations", "heads", "intermediate", "length",
             "masked", "precision", "warmup", "weight_decay")  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of the grid. Cells that differ only in `start` are paired."""

    start: str  # initialisation, as in configs; with "unit " before it: at std 1/√d
    lr: float
    seed: int
    steps: int = 9_500
    size: str = "4x256"
    objective: str = "masked"
    other: tuple[tuple[str, Any], ...] = ()  # settings other than the usual ones, sorted by name

    @property
    def key(self) -> str:
        """A name for the run that is also a file name."""
        start = self.start.replace(" ", "-")
        return f"{self.objective}-{self.size}-lr{self.lr:g}-{self.steps}{self.suffix}-{start}-seed{self.seed}"

    @property
    def suffix(self) -> str:
        """The settings other than the usual ones, as part of a file name."""
        return "".join("-" + re.sub(r"[^\w.-]+", "_", f"{key}{value}") for key, value in self.other)

    @property
    def setting(self) -> tuple[Any, ...]:
        """Everything a run and its baseline share, the seed excepted."""
        return self.objective, self.size, self.lr, self.steps, self.other

    @property
    def label(self) -> str:
        """The setting in words."""
        usual = f"{self.objective} {self.size} lr {self.lr:g} {self.steps} steps"
        return f"{usual}, {self.others}" if self.other else usual

    @property
    def others(self) -> str:
        """The settings other than the usual ones, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.other)

    def config(self, out: str, tokens: str, **neutral: Any) -> PretrainConfig:
        """Return the config of the run.

        out, tokens: folders of the run and of its token files
        neutral: settings that do not change the result, such as `compile`
        """
        settings: dict[str, Any] = {
            "out": out,
            "tokens": tokens,
            "objective": self.objective,
            "size": self.size,
            "start": self.start.removeprefix("unit "),
            "scale": "unit" if self.start.startswith("unit ") else None,
            "lr": self.lr,
            "steps": self.steps,
            "seed": self.seed,
            "checkpoints": 0,  # only where a slice of time ends
            "keep_model": False,
            **dict(self.other),
            **neutral,
        }
        return load_config(settings)


def grid(starts: Iterable[str], rates: Iterable[float], seeds: Iterable[int], **other: Any) -> tuple[Cell, ...]:
    """Return a cell for every seed, learning rate and initialisation; duplicates are dropped.

    The seed varies slowest, so that an unfinished grid can be compared already.
    """
    starts, rates = tuple(dict.fromkeys(starts)), tuple(dict.fromkeys(rates))
    return tuple(Cell(start, lr, seed, **other) for seed in seeds for lr in rates for start in starts)


_CORE = ("baseline", "symmetric", "unit independent", "unit symmetric", "authors")
_MIMETIC = ("mimetic-0.3", "mimetic-0.7", "mimetic-0.3-value", "mimetic-0.7-value")
_BEST = ("baseline", "unit symmetric", "mimetic-0.3")  # of core and mimetic over three seeds, and the baseline
GROUPS: dict[str, tuple[Cell, ...]] = {
    "pilot": grid(("baseline", "unit symmetric"), (5e-4,), (0,)),
    "core": grid(_CORE, (5e-4, 2e-4), range(3)),
    "mimetic-scan": grid(_MIMETIC, (5e-4,), (0,)),
    "mimetic": grid(_MIMETIC, (5e-4, 2e-4), range(3)),
    "controls": grid(("unit rotated", "unit self-attending", "unit skewed", "unit negative"), (5e-4,), range(3)),
    "controls-low": grid(("unit skewed", "unit self-attending"), (2e-4,), range(3)),
    "more-seeds": grid(_BEST, (5e-4, 2e-4), (3, 4)),
    "slow": grid(("baseline", "unit symmetric", "authors"), (5e-5,), (0,), steps=21_000),
    "large": grid(("baseline", "unit independent", "unit symmetric"), (2e-4,), range(3), steps=2_300, size="12x768"),
    "causal": grid(("baseline", "unit symmetric"), (5e-4,), range(3), objective="causal"),
}


def group_cells(
    groups: Iterable[str], starts: Iterable[str] | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[Cell, ...]:
    """Return the cells of these groups, each once, in order.

    starts: only these initialisations
    settings: in place of the usual ones; they make other cells, which are never mixed with the usual ones
    """
    by_key: dict[str, Cell] = {}
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r} does not exist{_nearest(group, GROUPS)}")
        by_key |= {cell.key: cell for cell in GROUPS[group]}
    if starts is not None:
        existing = list(dict.fromkeys(cell.start for cell in by_key.values()))
        for start in starts:
            if start not in existing:
                raise InputError(f"start {start!r} is not in these groups{_nearest(start, existing)}")
    wanted = [cell for cell in by_key.values() if starts is None or cell.start in starts]
    return _checked(replace(cell, other=_cell_settings(settings or {})) for cell in wanted)


def custom_grid(
    starts: Sequence[str],
    rates: Sequence[float],
    seeds: int,
    settings: Mapping[str, Any] | None = None,
    **other: Any,
) -> tuple[Cell, ...]:
    """Return a cell for each of these initialisations, learning rates and the first `seeds` seeds.

    settings: as in `group_cells`
    other: steps, size, objective
    """
    if seeds < 1:
        raise InputError(f"seeds is {seeds}, expected at least 1")
    for start in starts:
        check_initialisation(start.removeprefix("unit "))
    return _checked(grid(starts, rates, range(seeds), other=_cell_settings(settings or {}), **other))


def _checked(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells; raise before the first run if a run could not follow one of them."""
    cells = tuple(cells)
    for cell in cells:
        cell.config("out", "tokens")
    return cells


def _cell_settings(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the settings that change the result of a run, sorted by name; raise for those that cannot be set."""
    for name in settings:
        if name not in _SETTABLE:
            if name in PretrainConfig.__annotations__:
                raise InputError(f"setting {name!r} is fixed by the grid or its tokens and cannot be set")
            raise InputError(f"setting {name!r} does not exist{_nearest(name, _SETTABLE)}")
    return tuple((name, _hashable(settings[name])) for name in sorted(settings) if name not in RESULT_NEUTRAL)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names := list(names), 1)
    return f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
