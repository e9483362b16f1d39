"""Every initialisation by its name, as the key `start` of a config gives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from attngeo.errors import InputError
from attngeo.io.names import nearest_name
from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.controls import (
    indefinite_init_,
    independent_init_,
    negative_init_,
    rotated_init_,
    self_attending_init_,
    skewed_init_,
)
from attngeo.training.initialisation.equal_norm import large_symmetric_init_, small_skewed_init_
from attngeo.training.initialisation.mimetic import mimetic_init_
from attngeo.training.initialisation.result import Initialisation
from attngeo.training.initialisation.scale import Scale
from attngeo.training.initialisation.symmetric import symmetric_init_

_WITH_SCALE: dict[str, Callable[..., Initialisation]] = {
    "symmetric": symmetric_init_,
    "independent": independent_init_,
    "negative": negative_init_,
    "rotated": rotated_init_,
    "self-attending": self_attending_init_,
    "skewed": skewed_init_,
    "indefinite": indefinite_init_,
    "large-symmetric": large_symmetric_init_,
    "small-skewed": small_skewed_init_,
}
_WITHOUT_SCALE: dict[str, Callable[..., Initialisation]] = {
    "authors": authors_init_,
    "mimetic-0.3": partial(mimetic_init_, strength=0.3),
    "mimetic-0.7": partial(mimetic_init_, strength=0.7),
    "mimetic-0.3-value": partial(mimetic_init_, strength=0.3, value=True),
    "mimetic-0.7-value": partial(mimetic_init_, strength=0.7, value=True),
}
INITIALISATIONS = ("baseline", *_WITH_SCALE, *_WITHOUT_SCALE)
_WITHOUT_SEED = {"symmetric", "independent", "negative", "self-attending", "indefinite", "large-symmetric"}


def check_initialisation(name: str) -> None:
    """Raise InputError for a name that does not exist, with the nearest one that does."""
    if name not in INITIALISATIONS:
        raise InputError(
            f"start {name!r} does not exist{nearest_name(name, INITIALISATIONS)}"
        )  # `start` is the key in a config


def initialise_(model: nn.Module, name: str, *, scale: Scale = None, seed: int = 0) -> Initialisation | None:
    """Apply the initialisation called `name` in place; "baseline" leaves the model as it is and returns None."""
    check_initialisation(name)
    if name == "baseline":
        return None
    seeded = {} if name in _WITHOUT_SEED else {"seed": seed}
    if name in _WITHOUT_SCALE:
        return _WITHOUT_SCALE[name](model, **seeded)
    return _WITH_SCALE[name](model, scale=scale, **seeded)
