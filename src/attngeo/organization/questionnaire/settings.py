"""The settings of the questionnaire, with their defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Literal

from attngeo.arguments import finite_number, whole_number
from attngeo.errors import InputError


@dataclass(frozen=True)
class Settings:
    """The settings of one run of the questionnaire; results store them under these names."""

    iterations: int  # largest number of iterations; the questionnaire stops early when no tree changes
    alpha: float  # exponent of the level in a folder's weight
    beta: float  # exponent of the size in a folder's weight
    tree: Literal["flexible", "binary"]
    start: Literal["cosine", "gaussian"]  # affinity of the first trees
    constant: float  # of the flexible tree: a larger one makes it harder to join large groups
    epsilon: float  # width of the affinity kernel, as a multiple of the median distance
    refine: bool  # end with a round that lowers the total l1 norm of the Haar coefficients

    @classmethod
    def of(
        cls,
        dimensions: int,
        *,
        iterations: int | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        tree: Literal["flexible", "binary"] = "flexible",
        start: Literal["cosine", "gaussian"] = "cosine",
        constant: float = 1.0,
        epsilon: float = 1.0,
        refine: bool | None = None,
    ) -> Settings:
        """Return checked settings for a matrix (2 dimensions) or a tensor (3); their defaults differ."""
        tensor = dimensions == 3
        iterations = (3 if tensor else 10) if iterations is None else iterations
        alpha = (0.0 if tensor else 1.0) if alpha is None else alpha
        beta = (1.0 if tensor else 0.0) if beta is None else beta
        refine = (tensor and tree == "flexible") if refine is None else refine
        iterations = whole_number(iterations, "iterations", None)
        if iterations < 1:
            raise InputError(f"organize: expected at least one iteration, got {iterations}")
        numbers = {"alpha": alpha, "beta": beta, "constant": constant, "epsilon": epsilon}
        alpha, beta, constant, epsilon = (finite_number(value, name) for name, value in numbers.items())
        if tree not in ("flexible", "binary"):
            raise InputError(f"organize: unknown tree {tree!r}, expected 'flexible' or 'binary'")
        if start not in ("cosine", "gaussian"):
            raise InputError(f"organize: unknown start {start!r}, expected 'cosine' or 'gaussian'")
        return cls(iterations, alpha, beta, tree, start, constant, epsilon, bool(refine))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name, for files."""
        return asdict(self)


def checked_settings(stored: object) -> dict[str, Any]:
    """Return the settings stored in a file; {} stands for trees that were given rather than fitted."""
    if stored == {}:
        return {}
    names = [field.name for field in fields(Settings)]
    if not isinstance(stored, Mapping) or set(stored) != set(names):
        raise InputError(f"settings: expected {', '.join(names)}, found {stored!r}")
    for name in ("iterations", "alpha", "beta", "constant", "epsilon"):
        number = stored[name]
        if type(number) not in (int, float) or not isfinite(number):
            raise InputError(f"settings: {name} is {number!r}, expected a number")
    return Settings.of(3, **stored).as_dict()
