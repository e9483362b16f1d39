"""The command `attngeo`: a list of subcommands, each loaded when it is called.

Every subcommand parses its options, calls one function of the library and prints. Data goes to stdout, everything else
to stderr.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attngeo.io.names import nearest_name
from attngeo.version import __version__

# Command → the module of attngeo.cli that defines it and the first line of its help. The list is printed from here, so
# that `attngeo --help` need not import the commands.
COMMANDS = {
    "score": (
        "score",
        "Print symmetry, directionality and dominance of each layer of a checkpoint, without loading the model.",
    ),
    "published": (
        "score",
        "Print the scores published with arXiv 2502.10927, with a caution where they are known to be wrong.",
    ),
    "coverage": (
        "score",
        "Print which model types can be scored, captured and pruned, and how that is known; with TYPE only that one.",
    ),
    "organize": (
        "organization",
        "Run a model on an input, find the hierarchy of its queries, keys and heads, and measure its sparsity.",
    ),
    "invariance": (
        "organization",
        "Measure whether the softmax preserves the geometry of the attention logits, compared with a control.",
    ),
    "compare": (
        "compare",
        "Say what changed between two models, whether they are related and, on a text, how far apart they are.",
    ),
    "report": (
        "report",
        "Write one HTML file that shows models and their attention on an input; it opens offline.",
    ),
    "explore": (
        "report",
        "Serve a page where you enter a text and see the organised attention of a model; Ctrl-C stops it.",
    ),
    "prune": (
        "prune",
        "Remove the attention heads that cost least on calibration inputs, refit the others, write the smaller model.",
    ),
    "pretrain": (
        "training",
        "Pre-train a BERT, ModernBERT or LLaMA; the same command continues an interrupted run exactly.",
    ),
    "track": (
        "training",
        "Score the checkpoints of a training run in order of step; the same command continues with new ones.",
    ),
    "atlas": (
        "atlas",
        "Score many models into one folder of Parquet files, and query them together.",
    ),
    "demo": ("score", "Compare the two small models that ship with attngeo, an encoder and a decoder."),
}


class _LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is called.

    Arguments are typed as Any: some versions of typer use click's classes, others their own copies of them.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return super().get_command(ctx, name)
        module = import_module(f"attngeo.cli.{COMMANDS[name][0]}")
        return _without_types(typer.main.get_group(module.app).commands[name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            ctx.fail(f"no such command {args[0]!r}{nearest_name(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _usage_errors_in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors_in_one_line(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


_UsageError: Any = typer.BadParameter.__base__  # of click, or of typer's own copy of it


@contextmanager
def _usage_errors_in_one_line(ctx: Any = None) -> Iterator[None]:
    """Print a wrong option or argument as other errors are printed; typer would print the usage before it."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command prints its help
            raise
        name = ctx.invoked_subcommand if ctx is not None else None
        called = error.ctx.command_path if error.ctx else f"attngeo {name}" if name else "attngeo"
        message = error.format_message().removesuffix(".")
        typer.echo(f"attngeo: error: {message[:1].lower()}{message[1:]} (see {called} --help)", err=True)
        raise typer.Exit(2) from error


def _without_types(command: Any) -> Any:
    """Return a command whose help does not put the Python type of an argument, such as <list[str]>, after its name."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
    for part in getattr(command, "commands", {}).values():
        _without_types(part)
    return command


# Plain help: drawing it with rich would double the time that `--help` takes.
app = typer.Typer(
    cls=_LazyGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def main() -> None:
    """Run the command line; `attngeo.__main__` also ends it where Ctrl-C comes."""
    _clean_up_when_ended()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream prints every character anyway
            # A name in any script can be printed, even if the terminal cannot show it.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="attngeo")


def _clean_up_when_ended() -> None:
    """Let SIGTERM (of a scheduler) and SIGHUP (of a closed terminal) end the command as Ctrl-C does, and clean up."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores it
            signal.signal(number, end)


@app.callback(invoke_without_command=True)
def attngeo(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Measure the geometry of self-attention: in weights, on an input, and during training."""
    if version:
        typer.echo(f"attngeo {__version__}")
        raise typer.Exit
