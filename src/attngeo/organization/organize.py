"""`organize`: the hierarchy of a network tensor or a matrix."""

from __future__ import annotations

from typing import Any, Literal

from attngeo.arrays import is_torch, to_numpy
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.checks import real
from attngeo.organization.organization import Organization
from attngeo.organization.questionnaire.iterate import Settings, prepared, settle


@accepts_progress_bar
def organize(
    tensor: NetworkTensor | Any,
    *,
    iterations: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    tree: Literal["flexible", "binary"] = "flexible",
    start: Literal["cosine", "gaussian"] = "cosine",
    constant: float = 1.0,
    epsilon: float = 1.0,
    refine: bool | None = None,
    device: str | None = None,
    progress: Progress | bool | None = None,
) -> Organization:
    """Find a tree for every axis of a 3-tensor or a matrix such that it varies slowly along all of them at once.

    Tensors: 3 iterations with α 0, β 1, each heads, queries, keys; matrices: 10 with α 1, β 0, each columns, rows.
    Iterations stop early when no tree changes. `refine` (by default for tensors with flexible trees) ends with one
    round in which every tree is joined again to minimise the total l1 of the Haar coefficients, and kept if that is
    smaller. `device` names a torch device, for example "cuda". `progress(done, total)` is called after every axis;
    `progress=True` draws a bar.

    >>> array, trees = planted((24, 20, 12), seed=0)
    >>> found = organize(array)
    >>> found.expand().entropy() < 1.1 * expand(array, trees).entropy()
    True
    """
    network = tensor if isinstance(tensor, NetworkTensor) else None
    values = prepared(tensor if network is None else network.values, device)
    settings = Settings.of(
        values.ndim,
        iterations=iterations,
        alpha=alpha,
        beta=beta,
        tree=tree,
        start=start,
        constant=constant,
        epsilon=epsilon,
        refine=refine,
    )
    found = settle(values, settings, progress if callable(progress) else None)
    # What came as NumPy is not copied back from a device.
    kept = network if network is not None else to_numpy(real(tensor)) if is_torch(values) else values
    return Organization(kept, found.trees, found.affinities, found.history, settings.as_dict())
