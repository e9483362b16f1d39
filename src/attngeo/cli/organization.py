"""Commands of the organization room: capture a network's attention, organise it, ask what the softmax changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.cli.common import Debug, one_line_errors, parsed_layers, spoken_warnings
from attngeo.errors import InputError

if TYPE_CHECKING:
    from attngeo.organization.capture.network_tensor import NetworkTensor

app = typer.Typer(rich_markup_mode=None)

Ref = Annotated[
    str | None, typer.Argument(metavar="[REF]", help="A folder, a GGUF file or a hub id org/name; not with --tensor.")
]
Text = Annotated[str | None, typer.Option(metavar="TEXT", help="Run the model on this text.")]
TextFile = Annotated[Path | None, typer.Option(metavar="FILE", help="On the text in this file.")]
Picture = Annotated[Path | None, typer.Option(metavar="FILE", help="On this image.")]
Sound = Annotated[Path | None, typer.Option(metavar="FILE", help="On this sound: WAV.")]
Saved = Annotated[Path | None, typer.Option(metavar="FILE", help="No model: a tensor saved before, or an .npy array.")]
Stack = Annotated[str | None, typer.Option(metavar="S", help="encoder, decoder, cross, vision, text, …")]
Layers = Annotated[str | None, typer.Option(metavar="0-5,8", help="Only these layers.")]
Target = Annotated[str | None, typer.Option(metavar="TEXT", help="What the decoder of an encoder-decoder reads.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut off what is longer than the model's window.")]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute.")]


@app.command()
def organize(
    ref: Ref = None,
    text: Text = None,
    text_file: TextFile = None,
    image: Picture = None,
    audio: Sound = None,
    tensor: Saved = None,
    stage: Annotated[
        str | None, typer.Option(metavar="logits|probabilities", help="Before (default) or after softmax.")
    ] = None,
    stack: Stack = None,
    layers: Layers = None,
    target: Target = None,
    truncate: Truncate = False,
    iterations: Annotated[int | None, typer.Option(metavar="N", help="Default: 3; 10 for a matrix.")] = None,
    tree: Annotated[str, typer.Option(metavar="flexible|binary", help="How trees are grown.")] = "flexible",
    start: Annotated[str, typer.Option(metavar="cosine|gaussian", help="The affinity to begin with.")] = "cosine",
    permuted: Annotated[bool, typer.Option(help="Fit trees to permuted values too, as a control.")] = True,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the shuffled and permuted controls.")] = 0,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="New folder for summary, figures, objects.")] = None,
    debug: Debug = False,
) -> None:
    """The hierarchy of a network's queries, keys and heads, and how sparse the network is on it."""
    with one_line_errors(debug):
        from attngeo.io.atomic import atomic_folder, check_new_folder
        from attngeo.io.progress import ProgressBar

        named = {"--text": text, "--text-file": text_file, "--image": image, "--audio": audio, "--tensor": tensor}
        given = _given(named, ref)
        if out is None:
            raise InputError("--out: missing, name a new folder for the results")
        check_new_folder(out)
        with ProgressBar(ref or str(tensor)) as bar, spoken_warnings(bar.say):
            network = _network(
                ref, given, device, layers=layers, stage=stage, stack=stack, target=target, truncate=truncate
            )

            from attngeo.organization.organize import organize as organized
            from attngeo.show.organization_text import summary

            found = organized(
                network,
                iterations=iterations,
                tree=tree,  # type: ignore[arg-type]
                start=start,  # type: ignore[arg-type]
                device=device,
                progress=bar.step,
            )
            expansion = found.expand()
            comparison = expansion.compare(seed, permuted=permuted, device=device, progress=bar.step)
            words = summary(found, expansion, comparison)
            with atomic_folder(out) as folder:
                (folder / "summary.txt").write_text(words, "utf-8")
                found.save(folder / "organization.npz")
                expansion.save(folder / "expansion.npz")
                comparison.save(folder / "comparison.json")
                if hasattr(network, "save"):
                    network.save(folder / "tensor.npz")
                _draw_organization(found, comparison, folder)
        typer.echo(words, nl=False)
        typer.echo(f"attngeo: wrote {out}", err=True)


@app.command()
def invariance(
    ref: Ref = None,
    text: Text = None,
    text_file: TextFile = None,
    image: Picture = None,
    audio: Sound = None,
    tensor: Saved = None,
    stack: Stack = None,
    layers: Layers = None,
    target: Target = None,
    truncate: Truncate = False,
    masked: Annotated[bool, typer.Option("--masked", help="Compare with the masked softmax, the mask too.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the control and the bootstrap.")] = 0,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="New folder for report, figure, tensor.")] = None,
    debug: Debug = False,
) -> None:
    """Whether the softmax leaves the geometry of the logits alone, beside a control that is broken on purpose."""
    with one_line_errors(debug):
        from attngeo.io.atomic import atomic_folder, check_new_folder
        from attngeo.io.progress import ProgressBar

        named = {"--text": text, "--text-file": text_file, "--image": image, "--audio": audio, "--tensor": tensor}
        given = _given(named, ref)
        if out is not None:
            check_new_folder(out)
        with ProgressBar(ref or str(tensor)) as bar, spoken_warnings(bar.say):
            network = _network(ref, given, device, layers=layers, stack=stack, target=target, truncate=truncate)

            from attngeo.organization.softmax.invariance import softmax_invariance

            report = softmax_invariance(network, masked=masked, seed=seed, device=device, progress=bar.step)
        words = f"{report}\n"
        if out is not None:
            from attngeo.show import save_figure

            with atomic_folder(out) as folder:
                (folder / "summary.txt").write_text(words, "utf-8")
                report.save(folder / "invariance.json")
                if hasattr(network, "save"):
                    network.save(folder / "tensor.npz")
                save_figure(report.plot(), folder / "invariance.png")
        typer.echo(words, nl=False)
        if out is not None:
            typer.echo(f"attngeo: wrote {out}", err=True)


def _given(named: dict[str, str | Path | None], ref: str | None) -> tuple[str, Any]:
    """The one input named and what it holds; all that can fail before the model is loaded fails here."""
    given = {option: value for option, value in named.items() if value is not None}
    if len(given) != 1:
        what = f"{' and '.join(given)} were given" if given else "none was given"
        raise InputError(f"input: expected one of {', '.join(named)}; {what}")
    ((option, value),) = given.items()
    if option == "--tensor":
        if ref is not None:
            raise InputError(f"REF {ref}: no model is run where --tensor is given, expected one or the other")
        return option, _saved(Path(value))
    if ref is None:
        raise InputError("REF: missing, name a model: a folder, a GGUF file or a hub id")
    if option == "--text-file":
        return option, _words(Path(value))
    if option == "--text":
        return option, value
    from attngeo.organization.capture.media import image_of, read_sound

    return option, image_of(value) if option == "--image" else read_sound(value)


def _network(ref: str | None, given: tuple[str, Any], device: str | None, **options: Any) -> NetworkTensor | Any:
    """Run the model, unless a tensor was given."""
    option, value = given
    asked = {name: choice for name, choice in options.items() if choice not in (None, False)}
    asked |= {"layers": parsed_layers(options["layers"])} if "layers" in asked else {}
    if option == "--tensor":
        for name in asked:
            raise InputError(f"--{name}: says what to capture, but --tensor was captured before")
        return value
    from attngeo.organization.capture.capture import capture

    if option == "--audio":
        asked["sampling_rate"], value = value
    return capture(ref, value, device=device, **asked)


def _words(path: Path) -> str:
    try:
        words = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text in UTF-8") from None
    if "\0" in words:
        raise InputError(f"{path}: holds a zero byte: binary data, UTF-8 text expected")
    if not words.strip():
        raise InputError(f"{path}: empty, expected at least a word")
    return words


def _saved(path: Path) -> NetworkTensor | Any:
    if path.suffix != ".npy":
        from attngeo.organization.capture.network_tensor import NetworkTensor

        return NetworkTensor.load(path)
    import numpy as np

    from attngeo.organization.checks import checked

    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path}: cut short or not an array saved by numpy") from None
    return checked(array, str(path))


def _draw_organization(found: Any, comparison: Any, folder: Path) -> None:
    from attngeo.show import save_figure

    for name in ("slices", "trees", "heads")[: len(found.trees)]:
        save_figure(found.plot(name), folder / f"{name}.png")
    save_figure(comparison.plot(), folder / "sparsity.png")
