"""Options that several commands share; each is an annotated type for the parameter of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.cli.common import FORMATS

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(sorted(FORMATS.values())),
        help="Output format. Default: given by the suffix of --out, otherwise table.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of standard output.")
]
Layers = Annotated[str | None, typer.Option(metavar="0-5,8", help="Use only these layers.")]
Stacks = Annotated[list[str] | None, typer.Option(metavar="S", help="Score only this stack; may be repeated.")]
NumHeads = Annotated[
    int | None, typer.Option(metavar="N", help="Number of heads, for checkpoints without a transformers config.")
]
Unproven = Annotated[
    bool,
    typer.Option("--unproven", help="Also score model types whose layout was never checked against a live model."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Nulls = Annotated[bool, typer.Option(help="Compare with random weights and re-paired queries and keys.")]
Permuted = Annotated[bool, typer.Option(help="Also fit trees to permuted values, as a control.")]
PerLayer = Annotated[bool, typer.Option("--layers", help="One row per layer instead of medians per stack.")]
ComparisonFigure = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw the comparison to a .png, .svg or .pdf file.")
]

# The model's input, and what to record of its attention.
Text = Annotated[str | None, typer.Option(metavar="TEXT", help="Input: this text.")]
TextFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Input: the text in this file (UTF-8).")]
Image = Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this image.")]
Audio = Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this sound (WAV).")]
Stage = Annotated[
    str, typer.Option(metavar="probabilities|logits", help="Attention after (default) or before the softmax.")
]
Stack = Annotated[str | None, typer.Option(metavar="S", help="Stack to capture: encoder, decoder, cross, vision, …")]
Target = Annotated[str | None, typer.Option(metavar="TEXT", help="Input of the decoder, for encoder-decoder models.")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Shorten an input that is longer than the model's context window.")
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Device to compute on.")]
