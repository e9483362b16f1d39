"""`attngeo organize` and `attngeo invariance`: the hierarchy of a network, and what the softmax does to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attngeo.cli.common import one_line_errors, parse_layers, print_text, printed_warnings, read_words
from attngeo.cli.options import Audio, Debug, Device, Image, Layers, Permuted, Stack, Target, Text, TextFile, Truncate
from attngeo.errors import InputError
from attngeo.io.names import joined_names

if TYPE_CHECKING:
    from attngeo.arrays import Floats
    from attngeo.organization.capture.network_tensor import NetworkTensor
    from attngeo.organization.expansion.controls import Comparison
    from attngeo.organization.organization import Organization

app = typer.Typer(rich_markup_mode=None)

Ref = Annotated[
    str | None,
    typer.Argument(metavar="REF", help="The model: a folder, a GGUF file or a hub id org/name. Not with --tensor."),
]
Tensor = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Use a saved network tensor or an .npy array instead of running a model."),
]


@app.command()
def organize(
    ref: Ref = None,
    text: Text = None,
    text_file: TextFile = None,
    image: Image = None,
    audio: Audio = None,
    tensor: Tensor = None,
    stage: Annotated[
        str | None,
        typer.Option(metavar="logits|probabilities", help="Attention before (default) or after the softmax."),
    ] = None,
    stack: Stack = None,
    layers: Layers = None,
    target: Target = None,
    truncate: Truncate = False,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Iterations of the questionnaire. Default: 3, or 10 for a matrix.")
    ] = None,
    tree: Annotated[
        str,
        typer.Option(
            metavar="flexible|binary",
            help="Build trees from the elements up (flexible) or from the root down (binary).",
        ),
    ] = "flexible",
    start: Annotated[str, typer.Option(metavar="cosine|gaussian", help="The initial affinity.")] = "cosine",
    permuted: Permuted = True,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random seed of the shuffled and permuted controls.")
    ] = 0,
    device: Device = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for the summary, the figures and the results. Required."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a model on an input, find the hierarchy of its queries, keys and heads, and measure its sparsity."""
    with one_line_errors(debug):
        from attngeo.io.files import atomic_folder, check_new_folder
        from attngeo.io.progress import ProgressBar

        inputs = {"--text": text, "--text-file": text_file, "--image": image, "--audio": audio, "--tensor": tensor}
        option, value = _read_input(inputs, ref)
        if out is None:
            raise InputError("--out: missing, name a new folder for the results")
        check_new_folder(out)
        with ProgressBar(ref or str(tensor)) as bar, printed_warnings(bar.say):
            network = _network(
                ref,
                option,
                value,
                device,
                layers=layers,
                stage=stage,
                stack=stack,
                target=target,
                truncate=truncate,
            )

            from attngeo.organization.organize import organize
            from attngeo.show.organization_text import organization_summary

            organization = organize(
                network,
                iterations=iterations,
                tree=tree,  # type: ignore[arg-type]
                start=start,  # type: ignore[arg-type]
                device=device,
                progress=bar.step,
            )
            expansion = organization.expand()
            comparison = expansion.compare(seed, permuted=permuted, device=device, progress=bar.step)
            summary = organization_summary(organization, expansion, comparison)
            with atomic_folder(out) as folder:
                (folder / "summary.txt").write_text(summary, "utf-8")
                organization.save(folder / "organization.npz")
                expansion.save(folder / "expansion.npz")
                comparison.save(folder / "comparison.json")
                if hasattr(network, "save"):
                    network.save(folder / "tensor.npz")
                _draw_organization(organization, comparison, folder)
        print_text(summary)
        typer.echo(f"attngeo: wrote {out}", err=True)


@app.command()
def invariance(
    ref: Ref = None,
    text: Text = None,
    text_file: TextFile = None,
    image: Image = None,
    audio: Audio = None,
    tensor: Tensor = None,
    stack: Stack = None,
    layers: Layers = None,
    target: Target = None,
    truncate: Truncate = False,
    masked: Annotated[
        bool, typer.Option("--masked", help="Use the softmax under the mask of the model. Default: over whole rows.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of the control and the bootstrap.")] = 0,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New folder for the report, the figure and the tensor.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure whether the softmax preserves the geometry of the attention logits, compared with a control."""
    with one_line_errors(debug):
        from attngeo.io.files import atomic_folder, check_new_folder
        from attngeo.io.progress import ProgressBar

        inputs = {"--text": text, "--text-file": text_file, "--image": image, "--audio": audio, "--tensor": tensor}
        option, value = _read_input(inputs, ref)
        if out is not None:
            check_new_folder(out)
        with ProgressBar(ref or str(tensor)) as bar, printed_warnings(bar.say):
            network = _network(ref, option, value, device, layers=layers, stack=stack, target=target, truncate=truncate)

            from attngeo.organization.softmax.invariance import softmax_invariance
            from attngeo.show.organization_text import invariance_summary

            report = softmax_invariance(network, masked=masked, seed=seed, device=device, progress=bar.step)
        summary = invariance_summary(report)
        if out is not None:
            from attngeo.show.matplotlib import save_figure

            with atomic_folder(out) as folder:
                (folder / "summary.txt").write_text(summary, "utf-8")
                report.save(folder / "invariance.json")
                if hasattr(network, "save"):
                    network.save(folder / "tensor.npz")
                save_figure(report.plot(), folder / "invariance.png")
        print_text(summary)
        if out is not None:
            typer.echo(f"attngeo: wrote {out}", err=True)


def _read_input(inputs: dict[str, str | Path | None], ref: str | None) -> tuple[str, Any]:
    """Return the one input option that was given and its content.

    Whatever is wrong with these options is raised here, before the model is loaded.
    """
    given = {option: value for option, value in inputs.items() if value is not None}
    if len(given) != 1:
        what = f"{joined_names(given)} were given" if given else "none was given"
        raise InputError(f"input: expected one of {', '.join(inputs)}; {what}")
    ((option, value),) = given.items()
    if option == "--tensor":
        if ref is not None:
            raise InputError(f"REF {ref}: no model is run where --tensor is given, expected one or the other")
        return option, _read_tensor(Path(value))
    if ref is None:
        raise InputError("REF: missing, name a model: a folder, a GGUF file or a hub id")
    return option, read_content(option, value)


def read_content(option: str, value: str | Path) -> Any:
    """Return the text, the image, or the sampling rate and the waveform that an input option names."""
    if option == "--text-file":
        return read_words(Path(value))
    if option == "--text":
        return value
    from attngeo.organization.capture.media import read_image, read_sound

    return read_image(value) if option == "--image" else read_sound(value)


def _network(ref: str | None, option: str, value: Any, device: str | None, **options: Any) -> NetworkTensor | Floats:
    """Return the tensor that was given, or the one that the model `ref` produces for the input `value`."""
    chosen = {name: choice for name, choice in options.items() if choice not in (None, False)}
    chosen |= {"layers": parse_layers(options["layers"])} if "layers" in chosen else {}
    if option == "--tensor":
        for name in chosen:
            raise InputError(f"--{name}: selects what to capture from a model, but --tensor is already captured")
        return cast("NetworkTensor | Floats", value)
    from attngeo.organization.capture.capture import capture

    if option == "--audio":
        chosen["sampling_rate"], value = value
    return cast("NetworkTensor", capture(ref, value, device=device, **chosen))  # one input gives one tensor


def _read_tensor(path: Path) -> NetworkTensor | Floats:
    """Return a saved network tensor, or the array in an .npy file."""
    if path.suffix != ".npy":
        from attngeo.organization.capture.network_tensor import NetworkTensor

        return NetworkTensor.load(path)
    from attngeo.io.archive import load_npy
    from attngeo.organization.checks import checked

    tensor: Floats = checked(load_npy(path), str(path))
    return tensor


def _draw_organization(organization: Organization, comparison: Comparison, folder: Path) -> None:
    from attngeo.show.matplotlib import save_figure

    for kind in ("slices", "trees", "heads")[: len(organization.trees)]:
        save_figure(organization.plot(kind), folder / f"{kind}.png")  # type: ignore[arg-type]
    save_figure(comparison.plot(), folder / "sparsity.png")
