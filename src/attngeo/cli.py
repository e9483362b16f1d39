"""The command line: parse, call one function of one room, print. Data on stdout, everything else on stderr."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from attngeo import __version__
from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.table import ScoreTable

# Commands of the other rooms: where each is found, and the first line of its help, for a list that loads none of them.
_ROOMS = {
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
    "experiment": ("dynamics", "Questions settled over seeds."),
    "demo": ("demo", "Two small models shipped with the package, an encoder against a decoder."),
}


class _Rooms(TyperGroup):
    """The commands of all rooms; a room is loaded when one of its commands is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ROOMS]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in _ROOMS:
            return super().get_command(ctx, name)
        room = import_module(f"attngeo.cli_{_ROOMS[name][0]}")
        return typer.main.get_group(room.app).commands[name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        own = {name: str(command.help).strip().splitlines()[0] for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([*own.items(), *((name, line) for name, (_, line) in _ROOMS.items())])


# Plain help: drawing it with rich would double the time `--help` takes.
app = typer.Typer(
    cls=_Rooms, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)

_FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown", ".txt": "table"}
_FIGURES = (".png", ".svg", ".pdf")

Format = Annotated[
    str | None,
    typer.Option("--format", metavar="|".join(sorted(_FORMATS.values())), help="Default: by --out's suffix, or table."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of to stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


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


@app.command()
def score(
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="A folder, a file, or a hub id org/name[@rev].")],
    heads: Annotated[bool, typer.Option("--heads", help="Show the heads, not only the layers.")] = False,
    published: Annotated[bool, typer.Option("--published", help="Set beside the published figures.")] = False,
    published_as: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="The published model REF is; implies --published.")
    ] = None,
    stack: Annotated[list[str] | None, typer.Option(metavar="S", help="Only this stack; may be repeated.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="0-5,8", help="Only these layers.")] = None,
    num_heads: Annotated[int | None, typer.Option(metavar="N", help="Head count, where there is no config.")] = None,
    unproven: Annotated[bool, typer.Option("--unproven", help="Score layouts never checked on a live model.")] = False,
    nulls: Annotated[bool, typer.Option(help="Compare with chance.")] = True,
    folded: Annotated[
        bool | None, typer.Option("--folded/--no-folded", help="Also with the norm folded in. Default: if local.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the scores: png, svg or pdf.")] = None,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Symmetry and directionality of every layer and head, without loading the model."""
    refs = list(dict.fromkeys(refs))
    with _one_line(debug):
        form = _checked_format(form, out)
        _check_figure(figure)
        if published_as is not None:
            _check_published(published_as, refs)
        options = {
            "heads": heads or figure is not None or form == "table",  # the summary and the figure show heads too
            "nulls": nulls,
            "folded": folded,
            "num_heads": num_heads,
            "stack": tuple(stack) if stack else None,
            "layers": _parsed_layers(layers),
            "unproven": unproven,
        }
    tables: list[ScoreTable] = []
    frames: list[pl.DataFrame] = []
    for ref in refs:
        try:
            table = _scored(ref, options)
            compare = published or published_as is not None
            frames.append(_beside(ref, table, published_as, layers is None) if compare else table.frame)
            tables.append(table)
            for note in table.notes:
                typer.echo(f"attngeo: {note}", err=True)
        except Exception as error:
            _complain(error, ref, debug)
    if tables:
        with _one_line(debug):
            table = sum(tables[1:], tables[0])
            _show_scores(table, frames, heads, form, out)
            if figure is not None:
                _draw(table, figure)
    raise typer.Exit(0 if len(tables) == len(refs) else 1 if tables else 2)


@app.command()
def published(
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only hub ids containing this.")] = None,
    family: Annotated[str | None, typer.Option(metavar="TEXT", help="Only families containing this.")] = None,
    modality: Annotated[str | None, typer.Option(metavar="language|vision|audio", help="Only this modality.")] = None,
    stack: Annotated[str | None, typer.Option(metavar="encoder|decoder", help="Only this stack.")] = None,
    caution: Annotated[
        bool | None, typer.Option("--caution/--no-caution", help="Only figures (not) to be trusted.")
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Every layer, not the median of a stack.")] = False,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """The figures published with arXiv 2502.10927, with a caution where they are not what they claim to be."""
    with _one_line(debug):
        form = _checked_format(form, out)
        from attngeo.show.tables import encode
        from attngeo.weights.published import listed

        frame = listed(model=model, family=family, modality=modality, stack=stack, caution=caution, layers=layers)
        if not frame.height:
            raise AttngeoError("no published model matches; `attngeo published` lists them all")
        _deliver(encode(frame, form), out)


def _scored(ref: str, options: dict[str, Any]) -> ScoreTable:
    """Score one model, a bar on a terminal, what attngeo has to say about it as lines."""
    from attngeo.show.progress import Bar
    from attngeo.weights.score import score

    with Bar(ref) as bar, _spoken(bar.say):
        return score(ref, progress=bar.step, **options)


@contextmanager
def _spoken(say: Callable[[str], None]) -> Iterator[None]:
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


def _beside(ref: str, table: ScoreTable, name: str | None, whole: bool) -> pl.DataFrame:
    """The table's rows with the published figures; what the model reads is asked of its own configuration."""
    from attngeo.weights.open import open_checkpoint
    from attngeo.weights.published import beside, modality

    with open_checkpoint(ref) as checkpoint:
        return beside(table.frame, name, modality(checkpoint.config), whole=whole)


def _show_scores(table: ScoreTable, frames: list[pl.DataFrame], heads: bool, form: str, out: Path | None) -> None:
    import polars as pl

    from attngeo.show.scores import report
    from attngeo.show.tables import encode

    frame = pl.concat(frames)
    frame = frame if heads else frame.filter(pl.col("head").is_null())
    if form == "table":
        terminal = out is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else None
        _deliver(report(frame, table.summary(), width).encode(), out)
    else:
        _deliver(encode(frame, form), out)


def _draw(table: ScoreTable, path: Path) -> None:
    import io

    from attngeo.show.files import write_whole

    picture = io.BytesIO()
    table.plot().savefig(picture, format=path.suffix[1:].lower())
    write_whole(path, picture.getvalue())
    typer.echo(f"attngeo: drew {path}", err=True)


def _deliver(content: bytes, out: Path | None) -> None:
    """To the file, whole or not at all; or to stdout."""
    if out is None:
        typer.echo(content.decode(), nl=False)
    else:
        from attngeo.show.files import write_whole

        write_whole(out, content)
        typer.echo(f"attngeo: wrote {out}", err=True)


def _checked_format(form: str | None, out: Path | None) -> str:
    """The format asked for, or the one the file's name asks for; all that could fail later fails here."""
    if out is not None:
        from attngeo.show.files import check_writable

        check_writable(out)
    form = form or _FORMATS.get(out.suffix.lower() if out else "", "table")
    if form not in _FORMATS.values():
        raise AttngeoError(f"--format {form}: expected one of {', '.join(sorted(_FORMATS.values()))}")
    if form == "parquet" and out is None:
        raise AttngeoError("--format parquet: is not text, give it a file with --out")
    return form


def _check_figure(figure: Path | None) -> None:
    if figure is not None:
        from attngeo.show.files import check_writable

        check_writable(figure)
        if figure.suffix.lower() not in _FIGURES:
            raise AttngeoError(f"--figure {figure}: expected a name ending in {', '.join(_FIGURES)}")


def _check_published(name: str, refs: list[str]) -> None:
    from attngeo.weights.published import published

    if len(refs) > 1:
        raise AttngeoError(f"--published-as {name}: names one model, {len(refs)} were given")
    published(name)


def _parsed_layers(text: str | None) -> tuple[int, ...] | None:
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
def _one_line(debug: bool) -> Iterator[None]:
    """Whatever goes wrong inside becomes one line and exit code 2."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        _complain(error, None, debug)
        raise typer.Exit(2) from None


def _complain(error: Exception, ref: str | None, debug: bool) -> None:
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
