"""The settings of a pre-training run: one flat table, in a TOML file or as a dataclass."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attngeo.arguments import LARGEST_SEED, file_path, whole_number
from attngeo.errors import InputError, first_line
from attngeo.io.names import nearest_name
from attngeo.training.data.tokens import MAX_VOCABULARY
from attngeo.training.initialise import check_initialisation, takes_scale, target_std

# Settings that do not change the result of a run: two runs that differ only in these continue each other's checkpoints.
RESULT_NEUTRAL = frozenset({"out", "tokens", "train", "valid", "compile", "checkpoints", "keep_model"})
# The least value of each whole number.
_LEAST = {"length": 4, "batch": 1, "steps": 1, "evaluations": 1, "vocab": 1} | dict.fromkeys(
    ("checkpoints", "heads", "intermediate", "warmup"), 0
)


@dataclass(frozen=True)
class PretrainConfig:
    """Everything a run depends on. Runs that differ only in `start`, `scale` and `self_bias` are paired.

    The learning rate rises linearly over `warmup` steps and falls linearly to 0 at `steps`. There is no dropout.
    AdamW decays matrices only. Gradients are clipped to the norm `clip`; with clip = 0 they are not clipped.
    """

    out: str  # folder of the run
    # data
    train: tuple[str, ...] = ()  # text, JSONL, parquet files (.xz, .gz, .bz2), hub:org/name@split
    valid: tuple[str, ...] = ()  # held-out documents; empty: every hundredth document of train
    text_field: str = "text"
    tokens: str = ""  # folder of prepared token files; empty: `tokens` beside the run
    tokenizer: str = "train"  # "train", or a tokenizer.json or its folder
    vocab: int = 16_384
    lowercase: bool = True
    # model
    objective: Literal["masked", "causal"] = "masked"
    architecture: Literal["bert", "modernbert", "llama"] = "bert"  # modernbert: masked; llama: causal
    norm: Literal["post", "pre"] = "post"  # of BERT; the others are always pre-norm
    size: str = "4x256"  # 4x256, 12x768, 24x1024, or any layers x hidden with `heads`
    heads: int = 0  # 0: hidden/64
    intermediate: int = 0  # 0: 4·hidden; 8/3·hidden where the feed-forward layer is gated (modernbert, llama)
    start: str = "baseline"  # initialisation
    scale: Literal["unit", "half-unit", "kept"] | float | None = None  # of the initialisation; None: unit, or its own
    self_bias: bool = False  # add to the logit of each token with itself its mean in the unit symmetric initialisation
    # training
    length: int = 128  # tokens per row
    batch: int = 256  # rows per step, over all processes
    steps: int = 9_500
    lr: float = 5e-4
    warmup: int = 200
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip: float = 1.0
    masked: float = 0.15  # share of a row's tokens to predict: 80% [MASK], 10% another token, 10% unchanged
    seed: int = 0  # of initial values, data order and masks
    precision: Literal["auto", "bf16", "fp32"] = "auto"  # auto: bf16 on a GPU
    compile: Literal["auto", "yes", "no"] = "auto"  # auto: on a GPU
    # records
    evaluations: int = 100
    checkpoints: int = 10
    keep_model: bool = True  # save the trained model for from_pretrained

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, hidden size, heads."""
        match = re.fullmatch(r"(\d+)x(\d+)", self.size)
        layers, hidden = (int(match[1]), int(match[2])) if match else (0, 0)
        if not (layers and hidden):
            raise InputError(f"size is {self.size!r}, expected layers x hidden such as 4x256")
        heads = self.heads or max(1, hidden // 64)
        if hidden % heads:
            hint = "" if self.heads else " of 64 or more; set heads"
            raise InputError(f"size {self.size}: {hidden} does not divide into {heads} heads{hint}")
        return layers, hidden, heads

    @property
    def fingerprint(self) -> str:
        """A digest that is the same for runs with the same losses."""
        known = {key: value for key, value in asdict(self).items() if key not in RESULT_NEUTRAL}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def with_changes(self, **changes: Any) -> PretrainConfig:
        """Return a checked copy with other values of some fields."""
        return load_config(replace(self, **changes))


def load_config(source: PretrainConfig | Mapping[str, Any] | str | Path) -> PretrainConfig:
    """Return a checked config, made from a mapping or a TOML file; unknown keys and wrong types are errors.

    source: a PretrainConfig, a mapping of its fields, or the path of a TOML file

    >>> load_config({"out": "runs/a", "train": ["corpus.txt"], "size": "12x768"}).shape
    (12, 768, 12)
    """
    if isinstance(source, PretrainConfig):
        source = vars(source)
    if isinstance(source, Mapping):
        return _from_table(source, "config")
    try:
        with open(file_path(source), "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{source}: not TOML ({first_line(error)})") from error
    return _from_table(table, str(source))


def _from_table(table: Mapping[str, Any], where: str) -> PretrainConfig:
    """Return the config with the settings of `table`; errors begin with `where`."""
    hints = get_type_hints(PretrainConfig)
    for key in table:
        if key not in hints:
            raise InputError(f"{where}: no setting {key!r}{nearest_name(key, hints)}")
    required = [field.name for field in fields(PretrainConfig) if field.default is MISSING]
    missing = [name for name in required if name not in table]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} must be set")
    try:
        return _checked(PretrainConfig(**{key: _typed(key, value, hints[key]) for key, value in table.items()}))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


_TYPE_NAMES: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    str: "text",
    bool: "true or false",
    tuple[str, ...]: "a list of texts",
    tuple[float, ...]: "a list of numbers",
}


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Return the value as the type `hint` of the field `key`, or raise. A string counts as a list of one string."""
    if get_origin(hint) is tuple and isinstance(value, str | list | tuple):
        items = [value] if isinstance(value, str) else value
        return tuple(_typed(key, item, get_args(hint)[0]) for item in items)
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for choice in choices:
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if value in get_args(choice) if get_origin(choice) is Literal else type(value) is choice:
            return value
    expected = " or ".join(
        _TYPE_NAMES.get(choice) or ", ".join(map(repr, get_args(choice)))
        for choice in choices
        if choice is not NoneType  # TOML has no null: leaving the setting out gives None
    )
    raise InputError(f"{key} is {value!r}, expected {expected}")


def _checked(config: PretrainConfig) -> PretrainConfig:
    """Return the config, with the home folder in place of a leading ~ in its paths; raise if no run could follow it."""
    check_initialisation(config.start, config.scale)
    if config.scale is None and takes_scale(config.start):
        config = replace(config, scale="unit")
    _, hidden, heads = config.shape  # raises for an invalid size
    target_std(config.scale, hidden)  # raises for an invalid scale
    for name, least in _LEAST.items():
        if getattr(config, name) < least:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least {least}")
    if config.vocab > MAX_VOCABULARY:
        raise InputError(f"vocab is {config.vocab}, expected at most {MAX_VOCABULARY}: token files hold 16-bit numbers")
    whole_number(config.seed, "seed", 0, LARGEST_SEED)
    for name, low, high in (("lr", 0, 10), ("masked", 0, 1), ("clip", -1e-9, 1e9), ("weight_decay", -1e-9, 1)):
        if not low < getattr(config, name) < high:
            least_text = "above 0" if low == 0 else "at least 0"
            raise InputError(f"{name} is {getattr(config, name)}, expected {least_text} and under {high:g}")
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        raise InputError(f"betas is {list(config.betas)}, expected two numbers from 0 to under 1")
    architecture = config.architecture
    wanted = {"modernbert": "masked", "llama": "causal"}.get(architecture, config.objective)
    if config.objective != wanted:
        raise InputError(f"objective is {config.objective!r}, expected {wanted!r} with architecture = {architecture!r}")
    if architecture != "bert" and config.norm == "pre":
        raise InputError(f"norm = 'pre' is a setting of architecture = 'bert'; {architecture} is always pre-norm")
    if architecture != "bert" and hidden // heads % 2:
        raise InputError(
            f"size {config.size}: head size {hidden // heads} is odd; {architecture} rotates pairs of dimensions"
        )
    if config.self_bias and config.keep_model:
        raise InputError("self_bias = true: transformers has no model with it; set keep_model = false")
    at_home = os.path.expanduser
    paths = {name: at_home(getattr(config, name)) for name in ("out", "tokens", "tokenizer")}
    return replace(config, **paths, train=tuple(map(at_home, config.train)), valid=tuple(map(at_home, config.valid)))
