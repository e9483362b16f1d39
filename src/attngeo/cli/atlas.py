"""`attngeo atlas`: the scores of many models in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attngeo.cli.atlas_results import (
    Folder,
    NewFolder,
    Retry,
    Workers,
    organize,
    plot,
    published,
)
from attngeo.cli.common import one_line_errors, output_format, print_text, printed_warnings, write_output
from attngeo.cli.options import Debug, Format, Nulls, NumHeads, Out, Unproven
from attngeo.cli.ray_option import OptionalAddress, Ray, ray_argument
from attngeo.errors import InputError

# Name of a table → the method of Atlas that returns it.
_OTHERS = ("models", "failures", "organized", "invariance", "agreement", "summary")
TABLES = {"scores": "frame"} | {name: name for name in _OTHERS}


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


@atlas.command(cls=OptionalAddress)
def add(
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
    retry: Retry = False,
    workers: Workers = None,
    ray: Ray = None,
    heads: Annotated[bool, typer.Option(help="Also score each head.")] = True,
    nulls: Nulls = True,
    folded: Annotated[
        bool, typer.Option(help="Also score with the preceding normalisation folded into the weights.")
    ] = True,
    num_heads: NumHeads = None,
    unproven: Unproven = False,
    debug: Debug = False,
) -> None:
    """Score models into the atlas; it skips those that it holds, so the same command continues an interrupted one."""
    with one_line_errors(debug):
        from attngeo.atlas.atlas import Atlas
        from attngeo.atlas.listing import hub_models, hub_revisions
        from attngeo.atlas.reference import read_list
        from attngeo.io.progress import ProgressBar

        names = [*(refs or ()), *(name for path in lists or () for name in read_list(path))]
        names += [name for org in orgs or () for name in hub_models(org)]
        names += [name for ref in revisions or () for name in hub_revisions(ref)]
        if not names:
            raise InputError("no models named, expected REF..., --list FILE, --org NAME or --revisions REF")
        with ProgressBar(str(folder)) as bar, printed_warnings(bar.say):
            added = Atlas(folder).add(
                names,
                workers=workers,
                ray=ray_argument(ray),
                retry=retry,
                heads=heads,
                nulls=nulls,
                folded=folded,
                num_heads=num_heads,
                unproven=unproven,
                progress=bar,
                say=lambda line: bar.say(f"attngeo: failed: {line}"),
            )
        typer.echo(f"attngeo: {folder}: {added}", err=True)
        if added.failed and not retry:
            typer.echo("attngeo: --retry tries failed models again", err=True)
        # As in `attngeo score`: 1 if some models are in the atlas, 2 if none is.
        raise typer.Exit((1 if added.scored or added.linked or added.known else 2) if added.failed else 0)


atlas.command(cls=OptionalAddress)(organize)


@atlas.command()
def status(
    folder: Folder,
    failures: Annotated[bool, typer.Option("--failures", help="Also print what could not be scored, and why.")] = False,
    debug: Debug = False,
) -> None:
    """Print how many models the atlas holds; other processes may be adding to it."""
    with one_line_errors(debug):
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import as_text

        opened = Atlas(folder)
        print_text(f"{folder}: {opened.status()}\n")
        if failures and (frame := opened.failures()).height:
            print_text(as_text(frame.select("model", "revision", "options", "kind", "message")))


@atlas.command()
def query(
    folder: Folder,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT over scores, models, failures, organized, …")],
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Print the result of a SELECT over the tables of the atlas. It can read nothing else."""
    with one_line_errors(debug):
        form = output_format(form, out)
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import encode

        write_output(encode(Atlas(folder).sql(sql), form), out)


atlas.command()(plot)
atlas.command()(published)


@atlas.command()
def export(
    folder: Folder,
    table: Annotated[
        str,
        typer.Option(
            metavar="|".join(TABLES),
            help="Table of scored models, or of organised networks: per text, per pair of texts, or means over texts.",
        ),
    ] = "scores",
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Write the scores of all models, or another table, as one file."""
    with one_line_errors(debug):
        form = output_format(form, out)
        if table not in TABLES:
            raise InputError(f"--table {table}: expected one of {', '.join(TABLES)}")
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import encode

        write_output(encode(getattr(Atlas(folder), TABLES[table])(), form), out)
