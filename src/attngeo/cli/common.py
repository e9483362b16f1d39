"""What the commands share: options, one-line errors, output to a file or to stdout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.weights.scoring.table import ScoreTable

FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown", ".txt": "table"}
FIGURES = (".png", ".svg", ".pdf")

Format = Annotated[
    str | None,
    typer.Option("--format", metavar="|".join(sorted(FORMATS.values())), help="Default: by --out's suffix, or table."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of to stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def scored(ref: str, options: dict[str, Any]) -> ScoreTable:
    """Score one model, a bar on a terminal, what attngeo has to say about it as lines."""
    from attngeo.io.progress import ProgressBar
    from attngeo.weights.scoring.score import score

    with ProgressBar(ref) as bar, spoken_warnings(bar.say):
        return score(ref, progress=bar.step, **options)


@contextmanager
def spoken_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Warnings and log messages of attngeo, one line each."""
    import logging
    import warnings

    handler = logging.Handler()
    handler.emit = lambda record: say(f"attngeo: {_one(record.getMessage())}")  # type: ignore[method-assign]
    log = logging.getLogger("attngeo")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_, **__: say(f"attngeo: warning: {_one(message)}")
            yield
    finally:
        log.removeHandler(handler)


def draw(figure: Figure, path: Path) -> None:
    """Write a figure to a file and say so on stderr."""
    from attngeo.show import save_figure

    save_figure(figure, path)
    typer.echo(f"attngeo: drew {path}", err=True)


def deliver(content: bytes, out: Path | None) -> None:
    """To the file, whole or not at all; or to stdout."""
    if out is None:
        typer.echo(content.decode(), nl=False)
    else:
        from attngeo.io.atomic import write_file

        write_file(out, content)
        typer.echo(f"attngeo: wrote {out}", err=True)


def checked_format(form: str | None, out: Path | None) -> str:
    """The format asked for, or the one the file's name asks for; all that could fail later fails here."""
    if out is not None:
        from attngeo.io.atomic import check_writable

        check_writable(out)
    form = form or FORMATS.get(out.suffix.lower() if out else "", "table")
    if form not in FORMATS.values():
        raise AttngeoError(f"--format {form}: expected one of {', '.join(sorted(FORMATS.values()))}")
    if form == "parquet" and out is None:
        raise AttngeoError("--format parquet: is not text, give it a file with --out")
    return form


def check_figure(figure: Path | None) -> None:
    if figure is not None:
        from attngeo.io.atomic import check_writable

        check_writable(figure)
        if figure.suffix.lower() not in FIGURES:
            raise AttngeoError(f"--figure {figure}: expected a name ending in {', '.join(FIGURES)}")


def parsed_layers(text: str | None) -> tuple[int, ...] | None:
    """ "0-2,8" → (0, 1, 2, 8)."""
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


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Whatever goes wrong inside becomes one line and exit code 2."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        complain(error, None, debug)
        raise typer.Exit(2) from None


def complain(error: Exception, ref: str | None, debug: bool) -> None:
    """One line on stderr; the traceback before it where it was asked for."""
    if debug:
        import traceback

        traceback.print_exception(error)
    line = _one(error)
    if not isinstance(error, (AttngeoError, OSError)):
        line = f"unexpected {type(error).__name__}: {line} (--debug shows where)"
    if ref is not None and ref not in line:
        line = f"{ref}: {line}"
    typer.echo(f"attngeo: error: {line}", err=True)


def _one(message: object) -> str:
    return " ".join(str(message).split())
