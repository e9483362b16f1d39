"""`attngeo atlas`: the scores of many models in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import (
    Debug,
    Format,
    NumHeads,
    Out,
    Unproven,
    one_line_errors,
    output_format,
    printed_warnings,
    write_output,
)
from attngeo.cli.ray_option import OptionalAddress, Ray, ray_argument
from attngeo.errors import InputError

app = typer.Typer(rich_markup_mode=None)
atlas = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(atlas, name="atlas")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas.")]


@atlas.callback()
def group() -> None:
    """Score many models into one folder of Parquet files, and query them together."""


@atlas.command(cls=OptionalAddress)
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas; made if it does not exist.")],
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="REF...", help="Folders, files or hub ids org/name[@revision].")
    ] = None,
    lists: Annotated[
        list[Path] | None,
        typer.Option("--list", metavar="FILE", help="File with one REF per line; # starts a comment. May be repeated."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try models again that failed before.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of worker processes; 0: none. Default: one per core."),
    ] = None,
    ray: Ray = None,
    heads: Annotated[bool, typer.Option(help="Also score each head.")] = True,
    nulls: Annotated[bool, typer.Option(help="Compare with random weights and re-paired queries and keys.")] = True,
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
        from attngeo.atlas.reference import read_list
        from attngeo.io.progress import ProgressBar

        names = [*(refs or ()), *(name for path in lists or () for name in read_list(path))]
        if not names:
            raise InputError("no models named, expected REF... or --list FILE")
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


@atlas.command()
def status(
    folder: Folder,
    failures: Annotated[bool, typer.Option("--failures", help="Also print what could not be scored, and why.")] = False,
    debug: Debug = False,
) -> None:
    """Print how many models the atlas holds; it may be growing meanwhile."""
    with one_line_errors(debug):
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import as_text

        opened = Atlas(folder)
        typer.echo(f"{folder}: {opened.status()}")
        if failures and (frame := opened.failures()).height:
            typer.echo(as_text(frame.select("model", "revision", "options", "kind", "message")), nl=False)


@atlas.command()
def query(
    folder: Folder,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT over the tables scores, models and failures.")],
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Print the result of a SELECT over the tables scores, models and failures. It can read nothing but the atlas."""
    with one_line_errors(debug):
        form = output_format(form, out)
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import encode

        write_output(encode(Atlas(folder).sql(sql), form), out)


@atlas.command()
def export(
    folder: Folder,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Write the scores of all models as one table."""
    with one_line_errors(debug):
        form = output_format(form, out)
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import encode

        write_output(encode(Atlas(folder).frame(), form), out)
