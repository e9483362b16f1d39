"""The command line: parse, call one function of one room, print. Data on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attngeo import __version__

# Commands of the other rooms: where each is found, and the first line of its help, for a list that loads none of them.
_ROOMS = {
    "score": ("score", "Symmetry and directionality of every layer and head, without loading the model."),
    "published": (
        "score",
        "The figures published with arXiv 2502.10927, with a caution where they are not what they claim to be.",
    ),
    "organize": (
        "organization",
        "The hierarchy of a network's queries, keys and heads, and how sparse the network is on it.",
    ),
    "invariance": (
        "organization",
        "Whether the softmax leaves the geometry of the logits alone, beside a control that is broken on purpose.",
    ),
    "pretrain": (
        "dynamics",
        "Pre-train a BERT-shaped encoder or decoder; started again after a kill it continues to the same losses.",
    ),
    "track": (
        "dynamics",
        "Score the checkpoints of a run, in order of step; started again it goes on with those that are new.",
    ),
    "demo": ("demo", "Two small models shipped with the package, an encoder against a decoder."),
}


class _Rooms(TyperGroup):
    """The commands of all rooms; a room is loaded when one of its commands is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ROOMS]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in _ROOMS:
            return super().get_command(ctx, name)
        room = import_module(f"attngeo.cli.{_ROOMS[name][0]}")
        return typer.main.get_group(room.app).commands[name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        own = {name: str(command.help).strip().splitlines()[0] for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([*own.items(), *((name, line) for name, (_, line) in _ROOMS.items())])


# Plain help: drawing it with rich would double the time `--help` takes.
app = typer.Typer(
    cls=_Rooms, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def main() -> None:
    """Entry point of `attngeo` and `python -m attngeo`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names may be in any script
    try:
        app(prog_name="attngeo")
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def attngeo(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """The geometry of self-attention: of its weights, of what training does to them, of what heads make of an input."""
    if version:
        typer.echo(f"attngeo {__version__}")
        raise typer.Exit
