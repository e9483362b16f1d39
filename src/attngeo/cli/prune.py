"""`attngeo prune`: remove the heads of a model that cost least, and write the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attngeo.applications.prune.plan import METHOD, TOKENS
from attngeo.cli.common import Device, command, print_text, progress_bar, read_words
from attngeo.errors import InputError
from attngeo.io.names import joined_names

app = typer.Typer(rich_markup_mode=None)

_TOO_FEW_TOKENS = 384  # of the 512 that were too few in docs/pruning.md, a quarter of which was held out


@command(app)
def prune(
    ref: Annotated[str, typer.Argument(metavar="REF", help="The model: a folder, a GGUF file or a hub id org/name.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the pruned model, its plan and a figure.")],
    text_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Calibration text (UTF-8); may be repeated.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Calibration image; may be repeated.")
    ] = None,
    audio: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Calibration sound (WAV); may be repeated.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the decoder of an encoder-decoder reads, for sounds.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(metavar="0.3", help="Share of the heads to remove. Default: 0.3.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="Number of heads to remove, instead of --share.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="M",
            help="Criterion that chooses the heads: refit, error, sensitivity, folders, entropy or random.",
        ),
    ] = METHOD,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="group|query",
            help="Remove whole groups of query heads that share a key head, or equally many query heads of every "
            "group. Default: group.",
        ),
    ] = None,
    uniform: Annotated[
        bool,
        typer.Option(
            "--uniform",
            help="Remove the same number of heads from every layer, so that transformers loads the result.",
        ),
    ] = False,
    refit: Annotated[bool, typer.Option(help="Refit the output projections of the heads that stay.")] = True,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", help="Tokens that are used of longer texts, in windows drawn over all of them."),
    ] = TOKENS,
    eval_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Text to measure the loss on. Default: the held-out quarter of the inputs."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Measure the loss without 10, 30, 50 and 70% of the heads as well.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Measure all criteria.")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the windows of text, the masking and random choices.")
    ] = 0,
    device: Device = None,
) -> None:
    """Remove the attention heads that cost least on calibration inputs, refit the others, write the smaller model."""
    from attngeo.applications.prune.curve import prune_folder
    from attngeo.show.matplotlib import save_figure
    from attngeo.show.pruning import pruning_report

    options: dict[str, Any] = {"share": share, "heads": heads, "method": method, "unit": unit, "uniform": uniform}
    options |= {"tokens": tokens, "curve": curve, "compare": compare, "seed": seed, "device": device}
    with progress_bar(f"prune {ref}") as bar:
        result = prune_folder(
            ref,
            _inputs(text_file, image, audio),
            out,
            **options,
            target=target,
            refit=refit,
            evaluation=[read_words(path) for path in eval_file or ()] or None,
            draw=lambda curve, path: save_figure(curve.plot(), path),
            progress=lambda done, total: bar.step(done, total, "batches run"),
        )
    print_text(pruning_report(result.plan, result.curve))
    print_text(f"{result.summary}\n")
    read = result.plan.statistics.tokens if result.plan.statistics else None
    if text_file and read is not None and read <= _TOO_FEW_TOKENS:
        few = f"{read} calibration tokens to fit with are too few to choose heads well"
        typer.echo(f"attngeo: {few}; use about 16,000 (docs/pruning.md)", err=True)
    typer.echo(f"attngeo: wrote {out}", err=True)


def _inputs(texts: list[Path] | None, images: list[Path] | None, sounds: list[Path] | None) -> list[Any]:
    """Return the calibration inputs; InputError where there are none, or inputs of several kinds."""
    given = {"--text-file": texts, "--image": images, "--audio": sounds}
    named = [option for option, files in given.items() if files]
    if len(named) != 1:
        found = joined_names(named) or "none of them"
        raise InputError(f"calibration inputs: expected one of {', '.join(given)}, got {found}")
    if texts:
        return [read_words(path) for path in texts]
    from attngeo.organization.inputs import read_image

    if images:
        return [read_image(path) for path in images]
    missing = [path for path in sounds or () if not path.is_file()]
    if missing:
        raise InputError(f"{missing[0]}: no such file")
    return list(sounds or ())
