"""`attngeo atlas`: the scores of many models in one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attngeo.cli.common import (
    Nulls,
    NumHeads,
    Output,
    PerLayer,
    Permuted,
    Stack,
    Unproven,
    check_figure,
    command,
    print_text,
    progress_bar,
    write_figure,
)
from attngeo.errors import InputError

if TYPE_CHECKING:
    from attngeo.io.progress import ProgressBar

HERE = "here"  # the value of --ray without an address
_ADDRESS = re.compile(r"auto|ray://.*|[^/\s]+:\d+")
# Name of a table → the method of Atlas that returns it.
_OTHERS = ("models", "failures", "organized", "invariance", "agreement", "summary")
TABLES = {"scores": "frame"} | {name: name for name in _OTHERS}

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas; made if it does not exist.")]


@dataclass
class Tasks:
    """How the tasks of a call are run."""

    retry: Annotated[bool, typer.Option("--retry", help="Try models again that failed before.")] = False
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of worker processes; 0: none. Default: one per core.")
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Run the tasks on the Ray cluster at this address; without one, on a local Ray started for the call.",
        ),
    ] = None

    def arguments(self, bar: ProgressBar) -> dict[str, Any]:
        """Return the arguments of `Atlas.add` and `Atlas.organize`."""
        ray = self.ray is not None and (self.ray == HERE or self.ray)

        def say(line: str) -> None:
            bar.say(f"attngeo: failed: {line}")

        return {"retry": self.retry, "workers": self.workers, "ray": ray, "progress": bar, "say": say}

    def end(self, folder: Path, done: Any, succeeded: int, what: str) -> None:
        """Print what a call did, and end the command: 0 if all models are in the atlas, 1 if some are, 2 if none is."""
        typer.echo(f"attngeo: {folder}: {done}", err=True)
        if done.failed and not self.retry:
            typer.echo(f"attngeo: --retry tries failed {what} again", err=True)
        raise typer.Exit((1 if succeeded else 2) if done.failed else 0)


@dataclass
class Scores:
    """What is scored of each model: the options of `Atlas.add`."""

    heads: Annotated[bool, typer.Option(help="Also score each head.")] = True
    nulls: Nulls = True
    folded: Annotated[
        bool, typer.Option(help="Also score with the preceding normalisation folded into the weights.")
    ] = True
    num_heads: NumHeads = None
    unproven: Unproven = False


@dataclass
class Questions:
    """What is asked of each network on each text: the options of `Atlas.organize`."""

    stage: Annotated[
        str, typer.Option(metavar="logits|probabilities", help="Attention before (default) or after the softmax.")
    ] = "logits"
    stack: Stack = None
    permuted: Permuted = True
    invariance: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure the softmax invariance on the first N texts. Default: on all."),
    ] = None
    invariance_heads: Annotated[
        int,
        typer.Option(metavar="N", help="Heads organised one by one for the invariance, drawn for each text; 0: all."),
    ] = 24
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Shorten texts that are longer than the model's context window.")
    ] = False
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of controls and chosen heads.")] = 0


class _OptionalAddress(TyperCommand):
    """A command with the option `--ray [ADDRESS]`, whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a value for each `--ray` that has none; an address that follows is its value.

    >>> with_address(["--ray", "org/name"]), with_address(["--ray", "head:6379", "org/name"])
    (['--ray', 'here', 'org/name'], ['--ray', 'head:6379', 'org/name'])
    """
    full: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        full += [argument, HERE] if argument == "--ray" and not _ADDRESS.fullmatch(following) else [argument]
    return full


class _WholeLines(TyperGroup):
    """A group whose help has the first sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()])


app = typer.Typer(rich_markup_mode=None)
atlas = typer.Typer(cls=_WholeLines, rich_markup_mode=None, no_args_is_help=True)
app.add_typer(atlas, name="atlas")


@atlas.callback()
def group() -> None:
    """Score many models into one folder of Parquet files, and query them together."""


@command(atlas, cls=_OptionalAddress)
def add(
    *,
    folder: NewFolder,
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="Folders, files or hub ids org/name[@revision].")
    ] = None,
    lists: Annotated[
        list[Path] | None,
        typer.Option("--list", metavar="FILE", help="File with one REF per line; # starts a comment. May be repeated."),
    ] = None,
    orgs: Annotated[
        list[str] | None,
        typer.Option("--org", metavar="NAME", help="All models of this organisation of the hub. May be repeated."),
    ] = None,
    revisions: Annotated[
        list[str] | None,
        typer.Option("--revisions", metavar="REF", help="All branches and tags of this model. May be repeated."),
    ] = None,
    tasks: Tasks,
    scores: Scores,
) -> None:
    """Score models into the atlas; it skips those that it holds, so the same command continues an interrupted one."""
    from attngeo.atlas.atlas import Atlas
    from attngeo.atlas.reference import hub_models, hub_revisions, read_list

    names = [*(refs or ()), *(name for path in lists or () for name in read_list(path))]
    names += [name for org in orgs or () for name in hub_models(org)]
    names += [name for ref in revisions or () for name in hub_revisions(ref)]
    if not names:
        raise InputError("no models named, expected REF..., --list FILE, --org NAME or --revisions REF")
    with progress_bar(str(folder)) as bar:
        added = Atlas(folder).add(names, **asdict(scores), **tasks.arguments(bar))
    tasks.end(folder, added, added.scored + added.linked + added.known, "models")


@command(atlas, cls=_OptionalAddress)
def organize(
    *,
    folder: NewFolder,
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="Folders, GGUF files or hub ids org/name[@revision].")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER", help="Texts: one per line of a file, or one per .txt file of a folder. Required."
        ),
    ] = None,
    questions: Questions,
    tasks: Tasks,
) -> None:
    """Organise networks over many texts: head trees, sparsity and softmax invariance, with means over the texts."""
    from attngeo.atlas.atlas import Atlas
    from attngeo.atlas.organize import read_texts
    from attngeo.show.atlas import summary_report

    if not refs:
        raise InputError("no models named, expected REF...")
    if texts is None:
        raise InputError("--texts: missing, name a file with one text per line or a folder of .txt files")
    given = read_texts(texts)
    atlas = Atlas(folder)
    with progress_bar(str(folder)) as bar:
        done = atlas.organize(refs, given, **asdict(questions), **tasks.arguments(bar))
    if (summary := atlas.summary()).height:
        print_text(summary_report(summary))
    tasks.end(folder, done, done.organized + done.known, "texts")


@command(atlas)
def status(
    folder: Folder,
    failures: Annotated[bool, typer.Option("--failures", help="Also print what could not be scored, and why.")] = False,
) -> None:
    """Print how many models the atlas holds; other processes may be adding to it."""
    from attngeo.atlas.atlas import Atlas
    from attngeo.show.tables import encode

    opened = Atlas(folder)
    print_text(f"{folder}: {opened.status()}\n")
    if failures and (frame := opened.failures()).height:
        print_text(encode(frame.select("model", "revision", "options", "kind", "message"), "table").decode())


@command(atlas)
def query(
    folder: Folder,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT over scores, models, failures, organized, …")],
    output: Output,
) -> None:
    """Print the result of a SELECT over the tables of the atlas. It can read nothing else."""
    from attngeo.atlas.atlas import Atlas

    output.write(Atlas(folder).sql(sql))


@command(atlas)
def plot(
    folder: Folder,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="The figure: .png, .svg or .pdf. Required.")
    ] = None,
    x: Annotated[str, typer.Option("--x", metavar="COLUMN", help="Column of the scores on the x axis.")] = "symmetry",
    y: Annotated[
        str, typer.Option("--y", metavar="COLUMN", help="Column of the scores on the y axis.")
    ] = "directionality",
    revisions: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Draw the scores of one run over its steps instead: a hub id, or a folder of checkpoints.",
        ),
    ] = None,
) -> None:
    """Draw all models in the plane of two scores, with published models behind them, or one run over its steps."""
    if figure is None:
        raise InputError("--figure: missing, name a file ending in .png, .svg or .pdf")
    check_figure(figure)
    from attngeo.atlas.atlas import Atlas

    write_figure(Atlas(folder).plot(x, y, revisions=revisions), figure)


@command(atlas)
def published(*, folder: Folder, layers: PerLayer = False, output: Output) -> None:
    """Print the scores of published models next to those published with arXiv 2502.10927, row by row."""
    from attngeo.atlas.atlas import Atlas

    frame = Atlas(folder).published(layers=layers)
    if not frame.height:
        raise InputError(f"{folder}: holds no published model, add some by their hub ids")
    output.write(frame)


@command(atlas)
def export(
    *,
    folder: Folder,
    table: Annotated[
        str,
        typer.Option(
            metavar="|".join(TABLES),
            help="Table of scored models, or of organised networks: per text, per pair of texts, or means over texts.",
        ),
    ] = "scores",
    output: Output,
) -> None:
    """Write the scores of all models, or another table, as one file."""
    if table not in TABLES:
        raise InputError(f"--table {table}: expected one of {', '.join(TABLES)}")
    from attngeo.atlas.atlas import Atlas

    output.write(getattr(Atlas(folder), TABLES[table])())
