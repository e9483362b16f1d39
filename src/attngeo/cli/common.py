"""One-line errors, progress bars, input files and output that the commands share."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attngeo.errors import AttngeoError, InputError, one_line
from attngeo.io.files import read_text
from attngeo.io.progress import ProgressBar, messages_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.show.tables import Terminal
    from attngeo.weights.scoring.score_table import ScoreTable

FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown", ".txt": "table"}
FIGURES = (".png", ".svg", ".pdf")


def score_with_progress(ref: str, options: Mapping[str, Any]) -> ScoreTable:
    """Return the scores of one model; show a progress bar, and print warnings and notes as lines, each once."""
    from attngeo.weights.scoring.score import NoteWarning, score

    with progress_bar(ref) as bar:
        warnings.simplefilter("ignore", NoteWarning)  # until the context ends; the notes are printed below
        table = score(ref, progress=bar.step, **options)
        for note in table.notes:
            bar.say(f"attngeo: {one_line(note)}")
    return table


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
        from attngeo.io.files import write_errors, write_file

        with write_errors(out):
            write_file(out, content)
        typer.echo(f"attngeo: wrote {out}", err=True)


def write_report(report: str, out: Path | None) -> None:
    """Write a report to the file `out` atomically, or to stdout where it is None."""
    print_text(report) if out is None else write_output(report.encode(), out)


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
    bars = (sys.stdout.encoding or "").lower().startswith("utf")  # other encodings lack the blocks that bars consist of
    return Terminal(width, bars, colours=not os.environ.get("NO_COLOR"))


def output_format(form: str | None, out: Path | None) -> str:
    """Return the format to write: `form`, or what the suffix of `out` says, or "table".

    Whatever is wrong with the two options is raised here, before any work is done.
    """
    if out is not None:
        from attngeo.io.files import check_writable

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
        from attngeo.io.files import check_writable

        check_writable(figure)
        if figure.suffix.lower() not in FIGURES:
            raise AttngeoError(f"--figure {figure}: expected a name ending in {', '.join(FIGURES)}")


def read_words(path: Path) -> str:
    """Return the text in a UTF-8 file, which has at least a word."""
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: empty, expected at least a word")
    return text


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
