"""A progress bar for whoever asks: `progress=True` in place of a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Progress = Callable[[int, int | None], None]  # so many parts done, of so many if that is known
P = ParamSpec("P")
R = TypeVar("R")


def watched(function: Callable[P, R]) -> Callable[P, R]:
    """Let `progress` be True: a bar on the terminal, where it takes longer than two seconds."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        named: dict[str, Any] = options
        if not isinstance(named.get("progress"), bool):
            return function(*arguments, **options)
        if not named.pop("progress"):
            return function(*arguments, **options)
        from attngeo.show.progress import Bar

        with Bar(function.__name__) as bar:
            named["progress"] = bar.step
            return function(*arguments, **options)

    return call
