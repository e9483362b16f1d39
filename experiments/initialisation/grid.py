"""The grid of the initialisation experiment: which starts, learning rates and seeds, as a table of paired runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from attngeo.dynamics.initialisation.by_name import check_start
from attngeo.dynamics.pretraining.config import PretrainConfig, load_config
from attngeo.errors import InputError

# What a grid may be given in place of its usual settings, and becomes part of a cell ...
_OTHER = ("batch", "betas", "clip", "evaluations", "heads", "intermediate", "length", "masked", "precision", "warmup",
          "weight_decay")  # fmt: skip
# ... and what changes nothing about a run.
INCIDENTAL = ("checkpoints", "compile")


@dataclass(frozen=True)
class Cell:
    """One run of the grid; cells that differ only in `start` are paired."""

    start: str  # as in configs; "unit " before it: at std 1/√d
    lr: float
    seed: int
    steps: int = 9_500
    size: str = "4x256"
    objective: str = "masked"
    other: tuple[tuple[str, Any], ...] = ()  # settings that are not the usual ones, by name

    @property
    def key(self) -> str:
        """A name for the run, also of files."""
        start = self.start.replace(" ", "-")
        return f"{self.objective}-{self.size}-lr{self.lr:g}-{self.steps}{self.suffix}-{start}-seed{self.seed}"

    @property
    def suffix(self) -> str:
        """The settings that are not the usual ones, for names of files."""
        return "".join("-" + re.sub(r"[^\w.-]+", "_", f"{key}{value}") for key, value in self.other)

    @property
    def setting(self) -> tuple[Any, ...]:
        """What a run and its baseline share."""
        return self.objective, self.size, self.lr, self.steps, self.other

    @property
    def label(self) -> str:
        """The setting in words."""
        usual = f"{self.objective} {self.size} lr {self.lr:g} {self.steps} steps"
        return f"{usual}, {self.others}" if self.other else usual

    @property
    def others(self) -> str:
        """The settings that are not the usual ones, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.other)

    def config(self, out: str, tokens: str, **incidental: Any) -> PretrainConfig:
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
            **incidental,
        }
        return load_config(settings)


def grid(starts: Iterable[str], rates: Iterable[float], seeds: Iterable[int], **other: Any) -> tuple[Cell, ...]:
    """Seed by seed, so that whatever is finished can be compared; what is named twice is run once."""
    starts, rates = tuple(dict.fromkeys(starts)), tuple(dict.fromkeys(rates))
    return tuple(Cell(start, lr, seed, **other) for seed in seeds for lr in rates for start in starts)


_CORE = ("baseline", "symmetric", "unit independent", "unit symmetric", "authors")
_MIMETIC = ("mimetic-0.3", "mimetic-0.7", "mimetic-0.3-value", "mimetic-0.7-value")
_BEST = ("baseline", "unit symmetric", "mimetic-0.3")  # of the core and mimetic over three seeds
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


def cells(
    groups: Iterable[str], starts: Iterable[str] | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[Cell, ...]:
    """The cells of these groups, each once, in order; only these starts where they are given.

    settings  in place of the usual ones; they make other cells, which are never mixed with the usual ones
    """
    found: dict[str, Cell] = {}
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r} does not exist{_nearest(group, GROUPS)}")
        found |= {cell.key: cell for cell in GROUPS[group]}
    if starts is not None:
        there = list(dict.fromkeys(cell.start for cell in found.values()))
        for start in starts:
            if start not in there:
                raise InputError(f"start {start!r} is not in these groups{_nearest(start, there)}")
    wanted = [cell for cell in found.values() if starts is None or cell.start in starts]
    return _checked(replace(cell, other=_other(settings or {})) for cell in wanted)


def free_grid(
    starts: Sequence[str],
    rates: Sequence[float],
    seeds: int,
    settings: Mapping[str, Any] | None = None,
    **other: Any,
) -> tuple[Cell, ...]:
    """A grid of one's own: starts × learning rates × the first `seeds` seeds; `other`: steps, size, objective."""
    if seeds < 1:
        raise InputError(f"seeds is {seeds}, expected at least 1")
    for start in starts:
        check_start(start.removeprefix("unit "))
    return _checked(grid(starts, rates, range(seeds), other=_other(settings or {}), **other))


def _checked(found: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells, if a run could follow each: what is wrong with a setting is said before the first run."""
    found = tuple(found)
    for cell in found:
        cell.config("out", "tokens")
    return found


def _other(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    for name in settings:
        if name in PretrainConfig.__annotations__ and name not in (*_OTHER, *INCIDENTAL):
            raise InputError(f"setting {name!r} is fixed by the grid or its tokens and cannot be set")
        if name not in (*_OTHER, *INCIDENTAL):
            raise InputError(f"setting {name!r} does not exist{_nearest(name, (*_OTHER, *INCIDENTAL))}")
    return tuple((name, _hashable(settings[name])) for name in sorted(settings) if name in _OTHER)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names := list(names), 1)
    return f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
