"""The settings of a pre-training run: one flat table, in TOML or as a dataclass."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attngeo.errors import InputError

SIZES = {"4x256": (4, 256, 4), "12x768": (12, 768, 12), "24x1024": (24, 1024, 16)}  # layers, hidden, heads
_LAST_SEED = 2**40 - 1  # the generators' own seeds, multiples of it, have 64 bits
# What a run is not: two runs that differ only in these go on from each other's checkpoints.
INCIDENTAL = {"out", "tokens", "train", "valid", "compile", "checkpoints", "keep_model"}


@dataclass(frozen=True)
class PretrainConfig:
    """Everything a run depends on. Runs that differ only in `start` and `scale` are paired.

    The learning rate rises linearly over `warmup` steps and falls linearly to 0 at `steps`. There is no dropout.
    AdamW decays matrices only, gradients are clipped to norm `clip` (0: not at all).
    """

    out: str  # folder of the run
    # data
    train: tuple[str, ...] = ()  # text, JSONL, parquet files (.xz, .gz, .bz2), hub:org/name@split
    valid: tuple[str, ...] = ()  # held-out documents; empty: every hundredth of train
    text_field: str = "text"
    tokens: str = ""  # folder of prepared token files; empty: `tokens` beside the run
    tokenizer: str = "train"  # "train", or a tokenizer.json or its folder
    vocab: int = 16_384
    lowercase: bool = True
    # model
    objective: Literal["masked", "causal"] = "masked"
    size: str = "4x256"  # 4x256, 12x768, 24x1024, or any layers x hidden with `heads`
    heads: int = 0  # 0: hidden/64
    intermediate: int = 0  # 0: 4·hidden
    start: str = "baseline"
    scale: Literal["unit"] | float | None = None
    # training
    length: int = 128  # tokens a row
    batch: int = 256  # rows a step, over all processes
    steps: int = 9_500
    lr: float = 5e-4
    warmup: int = 200
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip: float = 1.0
    masked: float = 0.15  # share of a row's tokens to predict: 80% [MASK], 10% another token, 10% as they are
    seed: int = 0  # initial values, data order and masks
    precision: Literal["auto", "bf16", "fp32"] = "auto"  # auto: bf16 on a GPU
    compile: Literal["auto", "yes", "no"] = "auto"  # auto: on a GPU
    # records
    evaluations: int = 100
    checkpoints: int = 10
    keep_model: bool = True  # save the trained model for from_pretrained

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, hidden size, heads."""
        if self.size in SIZES and not self.heads:
            return SIZES[self.size]
        layers, _, hidden = self.size.partition("x")
        if not (layers.isdecimal() and hidden.isdecimal() and int(layers) and int(hidden)):
            raise InputError(f"size is {self.size!r}, expected layers x hidden such as 4x256")
        heads = self.heads or max(1, int(hidden) // 64)
        if int(hidden) % heads:
            hint = "" if self.heads else " of 64 or more; set heads"
            raise InputError(f"size {self.size}: {hidden} does not divide into {heads} heads{hint}")
        return int(layers), int(hidden), heads

    @property
    def fingerprint(self) -> str:
        """The same for runs that would give the same losses."""
        known = {key: value for key, value in asdict(self).items() if key not in INCIDENTAL}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def with_(self, **changes: Any) -> PretrainConfig:
        return checked(replace(self, **changes))


def load_config(source: PretrainConfig | Mapping[str, Any] | str | Path) -> PretrainConfig:
    """A config from itself, a mapping, or the path of a TOML file; unknown keys and wrong types are errors."""
    if isinstance(source, PretrainConfig):
        return checked(source)
    if isinstance(source, Mapping):
        return _made(source, "config")
    try:
        with open(source, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: not TOML ({error})") from error
    return _made(table, str(source))


def _made(table: Mapping[str, Any], where: str) -> PretrainConfig:
    hints = get_type_hints(PretrainConfig)
    for key in table:
        if key not in hints:
            near = get_close_matches(key, hints, 1)
            hint = f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(hints)}"
            raise InputError(f"{where}: no setting {key!r}{hint}")
    required = [field.name for field in fields(PretrainConfig) if field.default is MISSING]
    missing = [name for name in required if name not in table]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} must be set")
    made = PretrainConfig(**{key: _typed(key, value, hints[key], where) for key, value in table.items()})
    try:
        return checked(made)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


_WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def _typed(key: str, value: Any, hint: Any, where: str) -> Any:
    if get_origin(hint) is tuple:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, (list, tuple)):
            return tuple(_typed(key, one, get_args(hint)[0], where) for one in value)
    choices = (
        get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) not in (None, tuple, Literal) else (hint,)
    )
    for choice in choices:
        if get_origin(choice) is Literal and value in get_args(choice):
            return value
        if choice is NoneType and value is None:
            return value
        if choice is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(choice, type) and isinstance(value, choice) and not (choice is int and isinstance(value, bool)):
            return value
    expected = " or ".join(
        ", ".join(map(repr, get_args(c))) if get_origin(c) is Literal else _WORDS.get(c, str(c))
        for c in choices
        if c is not NoneType  # nothing is what leaving the setting out gives
    )
    raise InputError(f"{where}: {key} is {value!r}, expected {expected}")


def checked(config: PretrainConfig) -> PretrainConfig:
    """The config, if a run could follow it."""
    from attngeo.dynamics.data.wordpiece import LARGEST
    from attngeo.dynamics.initialisation.by_name import check_start

    check_start(config.start)
    config.shape  # noqa: B018  # raises for a size that is none
    if config.scale is not None and config.start.startswith(("baseline", "authors", "mimetic")):
        raise InputError(f"scale = {config.scale!r}: the {config.start} start has a scale of its own")
    for name in ("length", "batch", "steps", "evaluations", "vocab"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 1")
    for name in ("checkpoints", "heads", "intermediate", "warmup", "seed"):
        if getattr(config, name) < 0:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 0")
    if config.vocab > LARGEST:
        raise InputError(f"vocab is {config.vocab}, expected at most {LARGEST}: token files hold 16-bit numbers")
    if config.seed > _LAST_SEED:
        raise InputError(f"seed is {config.seed}, expected at most {_LAST_SEED}")
    for name, low, high in (("lr", 0, 10), ("masked", 0, 1), ("clip", -1e-9, 1e9), ("weight_decay", -1e-9, 1)):
        if not low < getattr(config, name) < high:
            least = "above 0" if low == 0 else "at least 0"
            raise InputError(f"{name} is {getattr(config, name)}, expected {least} and under {high:g}")
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        raise InputError(f"betas is {list(config.betas)}, expected two numbers from 0 to under 1")
    if config.length < 4:
        raise InputError(f"length is {config.length}, expected at least 4")
    return config
