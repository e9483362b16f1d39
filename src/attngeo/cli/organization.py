"""`attngeo organize` and `attngeo invariance`: the hierarchy of a network, and what the softmax does to it."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attngeo.cli.common import Captured, Device, Input, Permuted, command, print_text, progress_bar
from attngeo.errors import InputError
from attngeo.io.files import atomic_folder, check_new_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.arrays import Floats
    from attngeo.organization.tensor import NetworkTensor

app = typer.Typer(rich_markup_mode=None)

Ref = Annotated[
    str | None,
    typer.Argument(metavar="REF", help="The model: a folder, a GGUF file or a hub id org/name. Not with --tensor."),
]


@dataclass
class InputOrTensor(Input):
    """The input of a model, or what a model made of one."""

    tensor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use a saved network tensor or an .npy array instead of running a model."),
    ] = None

    def read(self, ref: str | None) -> dict[str, Any]:
        """Return the input of the model `ref`, or the tensor; what is wrong is raised before a model is loaded."""
        given = self.given(least=1)
        assert given is not None
        if given[0] == "--tensor":
            if ref is not None:
                raise InputError(f"REF {ref}: no model is run where --tensor is given, expected one or the other")
            return {"tensor": _read_tensor(given[1])}
        if ref is None:
            raise InputError("REF: missing, name a model: a folder, a GGUF file or a hub id")
        return self.arguments()


@command(app)
def organize(
    *,
    ref: Ref = None,
    given: InputOrTensor,
    stage: Annotated[
        str | None,
        typer.Option(metavar="logits|probabilities", help="Attention before (default) or after the softmax."),
    ] = None,
    captured: Captured,
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
) -> None:
    """Run a model on an input, find the hierarchy of its queries, keys and heads, and measure its sparsity."""
    read = given.read(ref)
    if out is None:
        raise InputError("--out: missing, name a new folder for the results")
    check_new_folder(out)
    with progress_bar(ref or str(given.tensor)) as bar:
        network = _network(ref, read, device, captured.arguments() | {"stage": stage})

        from attngeo.organization.organize import organize
        from attngeo.show.organization import organization_summary

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
        results = {"organization.npz": organization, "expansion.npz": expansion, "comparison.json": comparison}
        kinds = ("slices", "trees", "heads")[: len(organization.trees)]
        figures = {f"{kind}.png": organization.plot(kind) for kind in kinds}  # type: ignore[arg-type]
        _write(out, summary, network, results, figures | {"sparsity.png": comparison.plot()})
    print_text(summary)
    typer.echo(f"attngeo: wrote {out}", err=True)


@command(app)
def invariance(
    *,
    ref: Ref = None,
    given: InputOrTensor,
    captured: Captured,
    masked: Annotated[
        bool, typer.Option("--masked", help="Use the softmax under the mask of the model. Default: over whole rows.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of the control and the bootstrap.")] = 0,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New folder for the report, the figure and the tensor.")
    ] = None,
) -> None:
    """Measure whether the softmax preserves the geometry of the attention logits, compared with a control."""
    read = given.read(ref)
    if out is not None:
        check_new_folder(out)
    with progress_bar(ref or str(given.tensor)) as bar:
        network = _network(ref, read, device, captured.arguments())

        from attngeo.organization.invariance import softmax_invariance
        from attngeo.show.sparsity import invariance_summary

        report = softmax_invariance(network, masked=masked, seed=seed, device=device, progress=bar.step)
    summary = invariance_summary(report)
    if out is not None:
        _write(out, summary, network, {"invariance.json": report}, {"invariance.png": report.plot()})
    print_text(summary)
    if out is not None:
        typer.echo(f"attngeo: wrote {out}", err=True)


def _write(
    out: Path, summary: str, network: NetworkTensor | Floats, results: dict[str, Any], figures: dict[str, Figure]
) -> None:
    """Write a folder with the summary, the results, the network tensor unless it is a plain array, and the figures."""
    from attngeo.show.matplotlib import save_figure

    with atomic_folder(out) as folder:
        (folder / "summary.txt").write_text(summary, "utf-8")
        for name, result in (results | ({"tensor.npz": network} if hasattr(network, "save") else {})).items():
            result.save(folder / name)
        for name, figure in figures.items():
            save_figure(figure, folder / name)


def _network(
    ref: str | None, read: dict[str, Any], device: str | None, options: dict[str, Any]
) -> NetworkTensor | Floats:
    """Return the tensor that was given, or the one that the model `ref` produces for its input."""
    chosen = {name: choice for name, choice in options.items() if choice not in (None, False)}
    if "tensor" in read:
        for name in chosen:
            raise InputError(f"--{name}: selects what to capture from a model, but --tensor is already captured")
        return cast("NetworkTensor | Floats", read["tensor"])
    from attngeo.organization.capture import capture

    network = cast("NetworkTensor", capture(ref, device=device, **read, **chosen))  # one input gives one tensor
    gc.collect()  # a model refers to itself, and what is done with the tensor needs its memory
    return network


def _read_tensor(path: Path) -> NetworkTensor | Floats:
    """Return a saved network tensor, or the array in an .npy file."""
    if path.suffix != ".npy":
        from attngeo.organization.tensor import NetworkTensor

        return NetworkTensor.load(path)
    from attngeo.io.archive import load_npy
    from attngeo.organization.checks import checked

    tensor: Floats = checked(load_npy(path), str(path))
    return tensor
