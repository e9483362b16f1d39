"""What the commands share: `command`, which turns a function into a command, and bundles of options.

A bundle is a dataclass: a command that has a parameter of that type has an option for each of its fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from attngeo.cli.common import FORMATS, one_line_errors, output_format, read_words, write_output
from attngeo.errors import AttngeoError, InputError
from attngeo.io.names import joined_names

if TYPE_CHECKING:
    import polars as pl

Function = TypeVar("Function", bound=Callable[..., None])


def command(app: typer.Typer, **settings: Any) -> Callable[[Function], Function]:
    """Return a decorator that makes a function a command of `app`.

    The fields of bundles become options, --debug is added, and every error is printed as one line with exit code 2.
    """

    def register(function: Function) -> Function:
        hints = get_type_hints(function, include_extras=True)
        bundles: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        parameters = []
        takes_debug = "debug" in hints
        for name, parameter in inspect.signature(function).parameters.items():
            if name in bundles:
                own = get_type_hints(bundles[name], include_extras=True)
                parameters += [
                    _parameter(field.name, own[field.name], field.default) for field in fields(bundles[name])
                ]
            else:
                parameters.append(_parameter(name, hints[name], parameter.default))

        def run(**given: Any) -> None:
            with one_line_errors(given["debug"] if takes_debug else given.pop("debug")):
                for name, kind in bundles.items():
                    given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                function(**given)

        run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, {}
        parameters += [] if takes_debug else [_parameter("debug", Debug, False)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(**settings)(run)
        return function

    return register


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


# ---- single options

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Nulls = Annotated[bool, typer.Option(help="Compare with random weights and re-paired queries and keys.")]
Permuted = Annotated[bool, typer.Option(help="Also fit trees to permuted values, as a control.")]
PerLayer = Annotated[bool, typer.Option("--layers", help="One row per layer instead of medians per stack.")]
ComparisonFigure = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw the comparison to a .png, .svg or .pdf file.")
]
Layers = Annotated[str | None, typer.Option(metavar="0-5,8", help="Use only these layers.")]
NumHeads = Annotated[
    int | None, typer.Option(metavar="N", help="Number of heads, for checkpoints without a transformers config.")
]
Unproven = Annotated[
    bool,
    typer.Option("--unproven", help="Also score model types whose layout was never checked against a live model."),
]
Stage = Annotated[
    str, typer.Option(metavar="probabilities|logits", help="Attention after (default) or before the softmax.")
]
Stack = Annotated[str | None, typer.Option(metavar="S", help="Stack to capture: encoder, decoder, cross, vision, …")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Shorten an input that is longer than the model's context window.")
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Device to compute on.")]


# ---- bundles


@dataclass
class Output:
    """The format of a table, and where it is written; what is wrong with them is found before any work is done."""

    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(sorted(FORMATS.values())),
            help="Output format. Default: given by the suffix of --out, otherwise table.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of standard output.")
    ] = None

    def __post_init__(self) -> None:
        self.form = output_format(self.form, self.out)

    def write(self, frame: pl.DataFrame) -> None:
        """Write a table."""
        from attngeo.show.tables import encode

        write_output(encode(frame, self.form or "table"), self.out)


@dataclass
class Scored:
    """What is scored of a checkpoint."""

    stack: Annotated[list[str] | None, typer.Option(metavar="S", help="Score only this stack; may be repeated.")] = None
    layers: Layers = None
    num_heads: NumHeads = None
    unproven: Unproven = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of functions that score."""
        stack = tuple(self.stack) if self.stack else None
        numbers = {"num_heads": self.num_heads, "unproven": self.unproven}
        return numbers | {"stack": stack, "layers": parse_layers(self.layers)}


@dataclass
class Captured:
    """What is recorded of the attention of a model on its input."""

    stack: Stack = None
    layers: Layers = None
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Input of the decoder, for encoder-decoder models.")
    ] = None
    truncate: Truncate = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `capture`."""
        given: dict[str, Any] = {"stack": self.stack, "layers": parse_layers(self.layers), "target": self.target}
        return given | {"truncate": self.truncate}


@dataclass
class Input:
    """The input of a model: at most one of these."""

    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Input: this text.")] = None
    text_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: the text in this file (UTF-8).")] = None
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this image.")] = None
    audio: Annotated[Path | None, typer.Option(metavar="FILE", help="Input: this sound (WAV).")] = None

    def given(self, least: int = 0) -> tuple[str, Any] | None:
        """Return the option that was given and its value; InputError unless there is one, or none where it may lack.

        least: how many must be given
        """
        values = {f"--{field.name.replace('_', '-')}": getattr(self, field.name) for field in fields(self)}
        given = {option: value for option, value in values.items() if value is not None}
        if not least <= len(given) <= 1:
            verb = f"{joined_names(given)} were given" if given else "none was given"
            count = "one" if least else "at most one"
            raise InputError(f"input: expected {count} of {', '.join(values)}; {verb}")
        return next(iter(given.items()), None)

    def arguments(self) -> dict[str, Any]:
        """Return the argument `inputs` of functions that run a model, and the sampling rate of a sound."""
        given = self.given()
        if given is None:
            return {}
        option, value = given
        if option == "--text":
            return {"inputs": value}
        if option == "--text-file":
            return {"inputs": read_words(value)}
        from attngeo.organization.inputs import read_image, read_sound

        if option == "--image":
            return {"inputs": read_image(value)}
        rate, waveform = read_sound(value)
        return {"inputs": waveform, "sampling_rate": rate}


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return the layers that the option --layers names.

    >>> parse_layers("0-2,8")
    (0, 1, 2, 8)
    """
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
