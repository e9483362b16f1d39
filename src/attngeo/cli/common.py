"""What the commands share: `command`, which turns a function into a command, options, one-line errors, and output.

A bundle of options is a dataclass: a command that has a parameter of that type has an option for each of its fields.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from attngeo.errors import AttngeoError, InputError, one_line
from attngeo.io.files import check_writable, read_text, write_errors, write_file
from attngeo.io.names import joined_names
from attngeo.io.progress import ProgressBar, messages_to

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from attngeo.show.tables import Terminal

Function = TypeVar("Function", bound=Callable[..., None])

FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown", ".txt": "table"}
FIGURES = (".png", ".svg", ".pdf")


# ---- commands


def command(app: typer.Typer, **settings: Any) -> Callable[[Function], Function]:
    """Return a decorator that makes a function a command of `app`.

    The fields of bundles become options, --debug is added, and every error is printed as one line with exit code 2.
    """

    def register(function: Function) -> Function:
        hints = get_type_hints(function, include_extras=True)
        bundles: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        parameters = []
        takes_debug = "debug" in hints
        for name, parameter in inspect.signature(function).parameters.items():
            if name in bundles:
                own = get_type_hints(bundles[name], include_extras=True)
                parameters += [
                    _parameter(field.name, own[field.name], field.default) for field in fields(bundles[name])
                ]
            else:
                parameters.append(_parameter(name, hints[name], parameter.default))

        def run(**given: Any) -> None:
            with one_line_errors(given["debug"] if takes_debug else given.pop("debug")):
                for name, kind in bundles.items():
                    given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                function(**given)

        run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, {}
        parameters += [] if takes_debug else [_parameter("debug", Debug, False)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(**settings)(run)
        return function

    return register


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn any exception raised inside into one line on stderr and exit code 2."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        print_error(error, None, debug)
        raise typer.Exit(2) from None


def print_error(error: Exception, ref: str | None, debug: bool) -> None:
    """Print one line about an error on stderr, after its traceback if `debug` is set."""
    if debug:
        import traceback

        traceback.print_exception(error)
    line = one_line(error)
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:
        line = f"{one_line(error.filename)}: {error.strerror}"  # the file first, as in all messages
    elif not isinstance(error, (AttngeoError, OSError)):
        line = f"unexpected {type(error).__name__}: {line} (--debug shows where)"
    name = None if ref is None else one_line(ref)
    if name is not None and not re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", line):
        line = f"{name}: {line}"
    typer.echo(f"attngeo: error: {line}", err=True)


# ---- single options

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Nulls = Annotated[bool, typer.Option(help="Compare with random weights and re-paired queries and keys.")]
Permuted = Annotated[bool, typer.Option(help="Also fit trees to permuted values, as a control.")]
PerLayer = Annotated[bool, typer.Option("--layers", help="One row per layer instead of medians per stack.")]
ComparisonFigure = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw the comparison to a .png, .svg or .pdf file.")
]
Layers = Annotated[str | None, typer.Option(metavar="0-5,8", help="Use only these layers.")]
NumHeads = Annotated[
    int | None, typer.Option(metavar="N", help="Number of heads, for checkpoints without a transformers config.")
]
Unproven = Annotated[
    bool,
    typer.Option("--unproven", help="Also score model types whose layout was never checked against a live model."),
]
Stage = Annotated[
    str, typer.Option(metavar="probabilities|logits", help="Attention after (default) or before the softmax.")
]
Stack = Annotated[str | None, typer.Option(metavar="S", help="Stack to capture: encoder, decoder, cross, vision, …")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Shorten an input that is longer than the model's context window.")
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Device to compute on.")]


# ---- bundles


@dataclass
class Output:
    """The format of a table, and where it is written; what is wrong with them is found before any work is done."""

    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(sorted(FORMATS.values())),
            help="Output format. Default: given by the suffix of --out, otherwise table.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of standard output.")
    ] = None

    def __post_init__(self) -> None:
        self.form = output_format(self.form, self.out)

    def write(self, frame: pl.DataFrame) -> None:
        """Write a table in the format that was asked for."""
        from attngeo.show.tables import encode

        write_output(encode(frame, self.form or "table"), self.out)

    def write_report(self, report: str) -> None:
        """Write text for people."""
        print_text(report) if self.out is None else write_output(report.encode(), self.out)


@dataclass
class Scored:
    """What is scored of a checkpoint."""

    stack: Annotated[list[str] | None, typer.Option(metavar="S", help="Score only this stack; may be repeated.")] = None
    layers: Layers = None
    num_heads: NumHeads = None
    unproven: Unproven = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of functions that score."""
        stack = tuple(self.stack) if self.stack else None
        numbers = {"num_heads": self.num_heads, "unproven": self.unproven}
        return numbers | {"stack": stack, "layers": parse_layers(self.layers)}


@dataclass
class Captured:
    """What is recorded of the attention of a model on its input."""

    stack: Stack = None
    layers: Layers = None
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Input of the decoder, for encoder-decoder models.")
    ] = None
    truncate: Truncate = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `capture`."""
        given: dict[str, Any] = {"stack": self.stack, "layers": parse_layers(self.layers), "target": self.target}
        return given | {"truncate": self.truncate}


@dataclass
class Input:
    """The input of a model: at most one of these."""

    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Input: this text.")] = None
    text_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: the text in this file (UTF-8).")] = None
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this image.")] = None
    audio: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this sound (WAV).")] = None

    def given(self, least: int = 0) -> tuple[str, Any] | None:
        """Return the option that was given and its value; InputError unless there is one, or none where it may lack.

        least: how many must be given
        """
        values = {f"--{field.name.replace('_', '-')}": getattr(self, field.name) for field in fields(self)}
        given = {option: value for option, value in values.items() if value is not None}
        if not least <= len(given) <= 1:
            verb = f"{joined_names(given)} were given" if given else "none was given"
            count = "one" if least else "at most one"
            raise InputError(f"input: expected {count} of {', '.join(values)}; {verb}")
        return next(iter(given.items()), None)

    def arguments(self) -> dict[str, Any]:
        """Return the argument `inputs` of functions that run a model, and the sampling rate of a sound."""
        given = self.given()
        if given is None:
            return {}
        option, value = given
        if option == "--text":
            return {"inputs": value}
        if option == "--text-file":
            return {"inputs": read_words(value)}
        from attngeo.organization.inputs import read_image, read_sound

        if option == "--image":
            return {"inputs": read_image(value)}
        rate, waveform = read_sound(value)
        return {"inputs": waveform, "sampling_rate": rate}


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return the layers that the option --layers names.

    >>> parse_layers("0-2,8")
    (0, 1, 2, 8)
    """
    if text is None:
        return None
    layers: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if not first <= last < 10_000:
            raise AttngeoError(f"--layers {text}: expected numbers and ranges such as 0-5,8")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


# ---- output


@contextmanager
def progress_bar(label: str) -> Iterator[ProgressBar]:
    """Show a progress bar; warnings and log messages of attngeo are printed above it."""
    with ProgressBar(label) as bar, printed_warnings(bar.say):
        yield bar


def printed_warnings(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Pass warnings and log messages of attngeo to `say`, one line each, with the name of the program before them."""
    return messages_to(lambda line: say(f"attngeo: {line}"))


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file and say so on stderr."""
    from attngeo.show.matplotlib import save_figure

    save_figure(figure, path)
    typer.echo(f"attngeo: drew {path}", err=True)


def write_output(content: bytes, out: Path | None) -> None:
    """Write `content` to the file `out` atomically, or to stdout where it is None."""
    if out is None:
        _print(content.decode())
    else:
        with write_errors(out):
            write_file(out, content)
        typer.echo(f"attngeo: wrote {out}", err=True)


def print_text(text: str) -> None:
    """Write text for people to stdout; sentences that are wider than a terminal are broken at words."""
    if sys.stdout.isatty():
        from attngeo.show.tables import folded

        text = folded(text, shutil.get_terminal_size().columns)
    _print(text)


def _print(text: str) -> None:
    """Write text to stdout. A reader that has closed its pipe is no error, so BrokenPipeError is left as it is."""
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AttngeoError(f"standard output: cannot be written ({error.strerror or error})") from error


def terminal_of(out: Path | None = None) -> Terminal:
    """Return what stdout can show: bars and colours on a terminal, plain text in a file or a pipe.

    `NO_COLOR` turns colours off (https://no-color.org), and a terminal that calls itself dumb gets plain text.
    """
    from attngeo.show.tables import PLAIN, WIDTH, Terminal

    if out is not None or not sys.stdout.isatty():
        return PLAIN
    width = min(shutil.get_terminal_size().columns, WIDTH)
    if os.environ.get("TERM", "dumb") == "dumb":
        return Terminal(width)
    return Terminal(width, bars=True, colours=not os.environ.get("NO_COLOR"))


def output_format(form: str | None, out: Path | None) -> str:
    """Return the format to write: `form`, or what the suffix of `out` says, or "table".

    Whatever is wrong with the two options is raised here, before any work is done.
    """
    if out is not None:
        check_writable(out)
    suffix = out.suffix.lower() if out else ""
    if form is None and suffix and suffix not in FORMATS:  # a table of text in a file named .xlsx would open nowhere
        raise AttngeoError(f"--out {out}: expected a name ending in {', '.join(sorted(FORMATS))}")
    form = form or FORMATS.get(suffix, "table")
    if form not in FORMATS.values():
        raise AttngeoError(f"--format {form}: expected one of {', '.join(sorted(FORMATS.values()))}")
    if form == "parquet" and out is None:
        raise AttngeoError("--format parquet: not text, so it needs a file; name one with --out")
    return form


def check_figure(figure: Path | None) -> None:
    """Raise if the file named by --figure could not be written."""
    if figure is not None:
        check_writable(figure)
        if figure.suffix.lower() not in FIGURES:
            raise AttngeoError(f"--figure {figure}: expected a name ending in {', '.join(FIGURES)}")


def read_words(path: Path) -> str:
    """Return the text in a UTF-8 file, which has at least a word."""
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: empty, expected at least a word")
    return text
