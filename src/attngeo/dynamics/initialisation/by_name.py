"""Every start under its plain name, as configs and the experiment call them."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from attngeo.dynamics.initialisation.recipes import authors_init_, mimetic_init_
from attngeo.dynamics.initialisation.symmetric import (
    Scale,
    Start,
    independent_init_,
    negative_init_,
    rotated_init_,
    self_attending_init_,
    skewed_init_,
    symmetric_init_,
)
from attngeo.errors import InputError

_SCALED: dict[str, Callable[..., Start]] = {
    "symmetric": symmetric_init_,
    "independent": independent_init_,
    "negative": negative_init_,
    "rotated": rotated_init_,
    "self-attending": self_attending_init_,
    "skewed": skewed_init_,
}
_FIXED: dict[str, Callable[..., Start]] = {
    "authors": authors_init_,
    "mimetic-0.3": partial(mimetic_init_, strength=0.3),
    "mimetic-0.7": partial(mimetic_init_, strength=0.7),
    "mimetic-0.3-value": partial(mimetic_init_, strength=0.3, value=True),
    "mimetic-0.7-value": partial(mimetic_init_, strength=0.7, value=True),
}
STARTS = ("baseline", *_SCALED, *_FIXED)
_SEEDLESS = {"symmetric", "independent", "negative", "self-attending"}


def check_start(name: str) -> None:
    """Raise for a start that does not exist, with the nearest that does."""
    if name not in STARTS:
        near = get_close_matches(name, STARTS, 1)
        raise InputError(f"start {name!r} does not exist" + (f", did you mean {near[0]!r}?" if near else
                         f"; there are {', '.join(STARTS)}"))  # fmt: skip


def start_(model: Any, name: str, *, scale: Scale = None, seed: int = 0) -> Start | None:
    """Apply the start called `name`; "baseline" leaves the model as it was initialised."""
    check_start(name)
    if name == "baseline":
        return None
    seeded = {} if name in _SEEDLESS else {"seed": seed}
    if name in _FIXED:
        return _FIXED[name](model, **seeded)
    return _SCALED[name](model, scale=scale, **seeded)
