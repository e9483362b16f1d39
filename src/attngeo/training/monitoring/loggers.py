"""Pass values to a logger, whatever the signature of its `log` method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol


class Logger(Protocol):
    """An object with `.log(dict, step)` or `.log(dict)`, such as the wandb module."""

    @property
    def log(self) -> Callable[..., object]: ...


def log_values(logger: Logger, values: dict[str, float], step: int) -> None:
    """Call `logger.log` with the values and the step; if it accepts no step, the step is one of the values."""
    try:
        parameters = inspect.signature(logger.log).parameters
    except (TypeError, ValueError):  # a function written in C may have no signature
        logger.log(values, step)
        return
    kinds = [one.kind for one in parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters.values() if one.default is one.empty and one.kind in positional]
    if "step" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
        logger.log(values, step=step)
    elif len(required) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds:
        logger.log(values, step)
    else:
        logger.log({"step": step, **values})
