"""`organize`: find a tree for every axis of a network tensor or a matrix."""

from __future__ import annotations

from typing import Literal

from attngeo.arrays import ArrayInput, is_torch, to_numpy
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.checks import as_floats
from attngeo.organization.organization import Organization
from attngeo.organization.questionnaire.iterate import prepared, settle
from attngeo.organization.questionnaire.settings import Settings


@accepts_progress_bar
def organize(
    tensor: NetworkTensor | ArrayInput,
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
    """Return a tree for every axis of a 3-tensor or a matrix, such that it varies slowly along all trees at once.

    Each iteration builds the tree of every axis from the newest trees of the other axes: heads, queries, keys of a
    tensor, columns and rows of a matrix. Iterations stop early when no tree changes.

    iterations:  largest number of iterations; 3 for tensors and 10 for matrices by default
    alpha, beta: exponents of the folder weights (|F|/n)^β · 2^{−α·level}; 0 and 1 for tensors, 1 and 0 for matrices
    tree:        "flexible" trees are joined from the elements up, "binary" trees are cut from the root down
    start:       affinity of the first trees
    constant:    of the flexible tree: a larger one makes it harder to join large groups
    epsilon:     width of the affinity kernel, as a multiple of the median distance
    refine:      end with one round that rebuilds every tree to lower the total l1 norm of the Haar coefficients, and
                 keeps a new tree if it does; by default for tensors with flexible trees
    device:      torch device to compute on, for example "cuda"
    progress:    `progress(done, total)` is called after every axis; True draws a progress bar

    >>> array, trees = planted((24, 20, 12), seed=0)
    >>> organization = organize(array)
    >>> organization.expand().entropy() < 1.1 * expand(array, trees).entropy()
    True
    """
    network = tensor if isinstance(tensor, NetworkTensor) else None
    array = tensor.values if isinstance(tensor, NetworkTensor) else tensor
    values = prepared(array, device)
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
    result = settle(values, settings, progress if callable(progress) else None)
    # A NumPy input is kept as it is, rather than copied back from the device.
    kept = network if network is not None else to_numpy(as_floats(array)) if is_torch(values) else values
    return Organization(kept, result.trees, result.affinities, result.history, settings.as_dict())
