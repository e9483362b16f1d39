"""The option `--ray [ADDRESS]`, whose value may be left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

HERE = "here"  # the value of --ray without an address
_ADDRESS = re.compile(r"auto|ray://.*|[^/\s]+:\d+")

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run the tasks on the Ray cluster at this address; without one, on a local Ray started for the call.",
    ),
]


class OptionalAddress(TyperCommand):
    """A command with the option `--ray`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a value for each `--ray` that has none; an address that follows is its value.

    >>> with_address(["--ray", "org/name"]), with_address(["--ray", "head:6379", "org/name"])
    (['--ray', 'here', 'org/name'], ['--ray', 'head:6379', 'org/name'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    full: list[str] = []
    for i, argument in enumerate(arguments):
        full.append(argument)
        following = arguments[i + 1] if i + 1 < end else ""
        if argument == "--ray" and i < end and not _ADDRESS.fullmatch(following):
            full.append(HERE)
    return full


def ray_argument(value: str | None) -> bool | str:
    """Return the argument `ray` of an atlas."""
    return value is not None and (value == HERE or value)
