"""The grid of the initialisation experiment: initialisations × learning rates × seeds, as a table of paired runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attngeo.arguments import finite_number
from attngeo.errors import InputError
from attngeo.io.names import nearest_name
from attngeo.training.initialise import check_initialisation, takes_scale
from attngeo.training.pretraining.config import RESULT_NEUTRAL, PretrainConfig, load_config

# Settings that may replace the usual ones of a grid; all others are fixed by the grid or its tokens. Those that change
# the result of a run become part of its cell.
_SETTABLE = ("architecture", "batch", "betas", "checkpoints", "clip", "compile", "evaluations", "heads", "intermediate",
             "length", "masked", "norm", "precision", "until_loss", "warmup", "weight_decay")  # fmt: skip
_SELF_BIAS = " with self-bias"
_NAMES = {"bert": "BERT", "modernbert": "ModernBERT", "llama": "LLaMA"}
_PRE_NORM_BERT = "pre-norm BERT"
_MODELS = ("BERT", _PRE_NORM_BERT, "ModernBERT", "LLaMA")  # in the order of figures


@dataclass(frozen=True)
class Cell:
    """One run of the grid. Cells that differ only in `start` are paired."""

    # Initialisation, as in configs. Before it may stand its scale, "unit ", "half-unit " or "std 0.03 ", and behind it
    # " with self-bias".
    start: str
    lr: float
    seed: int
    steps: int = 9_500
    size: str = "4x256"
    objective: str = "masked"
    # Settings other than the usual ones, sorted by name; `until_loss` ends the run at the first lower held-out loss.
    other: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """A name for the run that is also a file name."""
        return f"{self.setting_key}-{self.start.replace(' ', '-')}-seed{self.seed}"

    @property
    def setting_key(self) -> str:
        """A name for the setting that is also part of a file name."""
        return f"{self.objective}-{self.size}-lr{self.lr:g}-{self.steps}{self.suffix}"

    @property
    def width(self) -> int:
        """The width d of the model."""
        return int(self.size.partition("x")[2])

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

    @property
    def model(self) -> str:
        """The architecture in words, such as "ModernBERT"."""
        other = dict(self.other)
        return _PRE_NORM_BERT if other.get("norm") == "pre" else _NAMES[other.get("architecture", "bert")]

    @property
    def place(self) -> tuple[bool, int]:
        """Where figures put it: encoders first, BERT before the others."""
        return self.objective != "masked", _MODELS.index(self.model)

    def without_model(self) -> Cell:
        """Return the cell as if its model were the usual one, so that cells of several models compare equal."""
        return replace(self, other=tuple(pair for pair in self.other if pair[0] not in ("architecture", "norm")))

    @property
    def until_loss(self) -> float | None:
        """The held-out loss below which the run ends; None: it takes all its steps."""
        loss: float | None = dict(self.other).get("until_loss")
        return loss

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
            **start_settings(self.start),
            "lr": self.lr,
            "steps": self.steps,
            "seed": self.seed,
            "checkpoints": 0,  # only where a slice of time ends
            "keep_model": False,
            **{key: value for key, value in self.other if key != "until_loss"},
            **neutral,
        }
        return load_config(settings)


def start_settings(start: str) -> dict[str, Any]:
    """Return the settings of an initialisation as a cell names it.

    >>> start_settings("unit symmetric"), start_settings("std 0.03 independent")["scale"]
    ({'start': 'symmetric', 'scale': 'unit', 'self_bias': False}, 0.03)
    """
    name = start.removesuffix(_SELF_BIAS)
    scale: str | float | None = None
    if name.startswith(("unit ", "half-unit ")):
        scale, _, name = name.partition(" ")
    elif name.startswith("std "):
        number, _, name = name.removeprefix("std ").partition(" ")
        try:
            scale = float(number)
        except ValueError:
            raise InputError(f"start {start!r}: expected a number after std") from None
    check_initialisation(name)
    if scale is None and takes_scale(name):
        scale = "kept"
    return {"start": name, "scale": scale, "self_bias": start.endswith(_SELF_BIAS)}


def grid(starts: Iterable[str], rates: Iterable[float], seeds: Iterable[int], **other: Any) -> tuple[Cell, ...]:
    """Return a cell for every seed, learning rate and initialisation; duplicates are dropped.

    The seed varies slowest, so that an unfinished grid can be compared already.
    """
    starts, rates = tuple(dict.fromkeys(starts)), tuple(dict.fromkeys(rates))
    return tuple(Cell(start, lr, seed, **other) for seed in seeds for lr in rates for start in starts)


_ARMS = ("baseline", "unit independent", "unit symmetric")
_MODERN_ARMS = (*_ARMS, "half-unit symmetric")
_MODERN = (("architecture", "modernbert"),)
_LONG_WARMUP = (("warmup", 1_000),)
_LONG: dict[str, Any] = {"size": "12x768", "steps": 8_000, "other": _LONG_WARMUP}
_SCREENED = (5e-4, 1e-3, 2e-3, 4e-3)
_MECHANISM = ("unit indefinite", "unit independent with self-bias", "unit small-skewed", "unit large-symmetric",
              "unit symmetric", "unit skewed", "unit independent", "baseline")  # fmt: skip
_SCALES = ("std 0.03", "std 0.045", "unit", "std 0.09", "std 0.125")  # unit is std 0.0625 at width 256
# What to recommend for each architecture. A group that follows a screening has the best learning rates found there.
ARCHITECTURE_GROUPS: dict[str, tuple[Cell, ...]] = {
    "tuned-rate-screen": grid(_ARMS, _SCREENED, (0,)),
    "tuned-rate": grid(_ARMS, (2e-3,), range(5)),
    "modernbert-screen": grid(_MODERN_ARMS, _SCREENED, (0,), other=_MODERN),
    "modernbert": grid(_MODERN_ARMS, (2e-3,), range(5), other=_MODERN)
    + grid(("unit symmetric",), (4e-3,), range(5), other=_MODERN),  # its own best rate
    "modernbert-large-screen": grid(
        ("baseline", "unit symmetric"), (5e-4, 1e-3), (0,), size="12x768", steps=1_500, other=_MODERN
    ),
    "modernbert-large": grid(
        ("baseline", "unit symmetric"), (5e-4,), range(3), size="12x768", steps=5_000, other=_MODERN
    ),
    "pre-norm": grid(_ARMS, (1e-3,), range(5), other=(("norm", "pre"),)),
    "large-long": grid(_ARMS, (5e-4,), range(3), **_LONG) + grid(("unit skewed",), (5e-4,), range(2), **_LONG),
    "mechanism": grid(_MECHANISM, (2e-4, 5e-4), range(5)),
    "scale": grid(
        tuple(f"{scale} {start}" for scale in _SCALES for start in ("symmetric", "independent")), (5e-4,), range(3)
    ),
    "causal-tuned": grid(_ARMS, (1e-3,), range(3), objective="causal", other=(("architecture", "llama"),))
    + grid(_ARMS, (1e-3,), range(3), objective="causal"),
    "largest": grid(
        ("baseline", "unit symmetric"),
        (5e-4,),
        (0,),
        size="24x1024",
        steps=8_000,
        other=(("until_loss", 5.0), *_LONG_WARMUP),
    ),
    "largest-screen": grid(
        ("baseline", "unit symmetric"),
        (1e-4, 2e-4),
        range(2),
        size="24x1024",
        steps=600,
        other=(("evaluations", 15), ("warmup", 400)),
    ),
    "authors": grid(("authors",), (5e-4, 2e-4), (0,)) + grid(("authors",), (5e-5,), (0,), steps=21_000),  # corrected
}
FINE_TUNED = frozenset(
    {"tuned-rate", "modernbert", "modernbert-large"}
)  # groups whose runs are fine-tuned right after training
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
    **ARCHITECTURE_GROUPS,
}


def group_cells(
    groups: Iterable[str],
    starts: Iterable[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    rates: Sequence[float] = (),
) -> tuple[Cell, ...]:
    """Return the cells of these groups, each once, in order.

    starts: only these initialisations
    settings: in place of the usual ones; they make other cells, which are never mixed with the usual ones
    rates: learning rates in place of those of the groups
    """
    by_key: dict[str, Cell] = {}
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r} does not exist{nearest_name(group, GROUPS)}")
        by_key |= {cell.key: cell for cell in GROUPS[group]}
    if starts is not None:
        existing = list(dict.fromkeys(cell.start for cell in by_key.values()))
        for start in starts:
            if start not in existing:
                raise InputError(f"start {start!r} is not in these groups{nearest_name(start, existing)}")
    wanted = [cell for cell in by_key.values() if starts is None or cell.start in starts]
    if rates:
        wanted = [replace(cell, lr=rate) for rate in rates for cell in wanted]
        wanted = sorted(dict.fromkeys(wanted), key=lambda cell: cell.seed)
    return _checked(replace(cell, other=_cell_settings(dict(cell.other) | dict(settings or {}))) for cell in wanted)


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
        start_settings(start)
    return _checked(grid(starts, rates, range(seeds), other=_cell_settings(settings or {}), **other))


def _checked(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells; raise before the first run if a run could not follow one of them."""
    cells = tuple(cells)
    for cell in cells:
        cell.config("out", "tokens")
        if cell.until_loss is not None:
            finite_number(cell.until_loss, "until_loss")
    return cells


def _cell_settings(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the settings that change the result of a run, sorted by name; raise for those that cannot be set."""
    for name in settings:
        if name not in _SETTABLE:
            if name in PretrainConfig.__annotations__:
                raise InputError(f"setting {name!r} is fixed by the grid or its tokens and cannot be set")
            raise InputError(f"setting {name!r} does not exist{nearest_name(name, _SETTABLE)}")
    return tuple((name, _hashable(settings[name])) for name in sorted(settings) if name not in RESULT_NEUTRAL)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
