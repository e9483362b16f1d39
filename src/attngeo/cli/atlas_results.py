"""`attngeo atlas organize`, `plot` and `published`, and the options that the commands of an atlas share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import (
    check_figure,
    one_line_errors,
    output_format,
    print_text,
    printed_warnings,
    write_figure,
    write_output,
)
from attngeo.cli.options import Debug, Format, Out, PerLayer, Permuted, Stack
from attngeo.cli.ray_option import Ray, ray_argument
from attngeo.errors import InputError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the atlas; made if it does not exist.")]
Retry = Annotated[bool, typer.Option("--retry", help="Try models again that failed before.")]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Number of worker processes; 0: none. Default: one per core.")
]
ApiRequests = Annotated[
    int, typer.Option(metavar="N", help="Listings that all workers may request from the hub in five minutes.")
]
FileRequests = Annotated[
    int, typer.Option(metavar="N", help="Contents of files that all workers may request from the hub in five minutes.")
]


def organize(
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
    stage: Annotated[
        str, typer.Option(metavar="logits|probabilities", help="Attention before (default) or after the softmax.")
    ] = "logits",
    stack: Stack = None,
    permuted: Permuted = True,
    invariance: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure the softmax invariance on the first N texts. Default: on all."),
    ] = None,
    invariance_heads: Annotated[
        int,
        typer.Option(metavar="N", help="Heads organised one by one for the invariance, drawn for each text; 0: all."),
    ] = 24,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Shorten texts that are longer than the model's context window.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of controls and chosen heads.")] = 0,
    retry: Retry = False,
    workers: Workers = None,
    ray: Ray = None,
    api_requests: ApiRequests = 400,
    file_requests: FileRequests = 2400,
    debug: Debug = False,
) -> None:
    """Organise networks over many texts: head trees, sparsity and softmax invariance, with means over the texts."""
    with one_line_errors(debug):
        from attngeo.atlas.atlas import Atlas
        from attngeo.atlas.budget import HubLimits
        from attngeo.atlas.organizing.texts import read_texts
        from attngeo.io.progress import ProgressBar
        from attngeo.show.atlas import summary_report

        if not refs:
            raise InputError("no models named, expected REF...")
        if texts is None:
            raise InputError("--texts: missing, name a file with one text per line or a folder of .txt files")
        given = read_texts(texts)
        atlas = Atlas(folder)
        with ProgressBar(str(folder)) as bar, printed_warnings(bar.say):
            done = atlas.organize(
                refs,
                given,
                stage=stage,
                stack=stack,
                permuted=permuted,
                invariance=invariance,
                invariance_heads=invariance_heads,
                truncate=truncate,
                seed=seed,
                workers=workers,
                ray=ray_argument(ray),
                retry=retry,
                hub_limits=HubLimits(api_requests, file_requests),
                progress=bar,
                say=lambda line: bar.say(f"attngeo: failed: {line}"),
            )
        if (summary := atlas.summary()).height:
            print_text(summary_report(summary))
        typer.echo(f"attngeo: {folder}: {done}", err=True)
        if done.failed and not retry:
            typer.echo("attngeo: --retry tries failed texts again", err=True)
        raise typer.Exit((1 if done.organized or done.known else 2) if done.failed else 0)


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
    debug: Debug = False,
) -> None:
    """Draw all models in the plane of two scores, with published models behind them, or one run over its steps."""
    with one_line_errors(debug):
        if figure is None:
            raise InputError("--figure: missing, name a file ending in .png, .svg or .pdf")
        check_figure(figure)
        from attngeo.atlas.atlas import Atlas

        write_figure(Atlas(folder).plot(x, y, revisions=revisions), figure)


def published(
    folder: Folder,
    layers: PerLayer = False,
    form: Format = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Print the scores of published models next to those published with arXiv 2502.10927, row by row."""
    with one_line_errors(debug):
        form = output_format(form, out)
        from attngeo.atlas.atlas import Atlas
        from attngeo.show.tables import encode

        frame = Atlas(folder).published(layers=layers)
        if not frame.height:
            raise InputError(f"{folder}: holds no published model, add some by their hub ids")
        write_output(encode(frame, form), out)
