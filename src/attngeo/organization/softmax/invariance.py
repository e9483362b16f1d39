"""Softmax invariance: agreement of the geometry before and after the softmax, compared with a control.

The control permutes the values inside each row of each head before the softmax: each row keeps its values and loses
their places. A figure counts as evidence if the 95% interval of its advantage over the control lies above 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.arguments import whole_number, whole_numbers
from attngeo.arrays import ArrayInput, Bools, Floats, to_numpy
from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.capture.network_tensor import NetworkTensor, softmax
from attngeo.organization.checks import checked
from attngeo.organization.geometry.agreement import Agreement, agreement
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.transform import forward
from attngeo.organization.organization import Organization
from attngeo.organization.organize import organize
from attngeo.organization.softmax.contrasts import head_contrasts, network_contrasts
from attngeo.organization.softmax.invariance_report import HeadInvariance, InvarianceReport
from attngeo.organization.softmax.paraproduct import paraproduct

FEWEST_SAMPLES = 40  # of the bootstrap: a 95% interval leaves out one sample in 40 on each side


@accepts_progress_bar
def softmax_invariance(
    tensor: NetworkTensor | ArrayInput,
    *,
    masked: bool = False,
    heads: Sequence[int] | None = None,
    iterations: int | None = None,
    bootstrap: int = 500,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | bool | None = None,
) -> InvarianceReport:
    """Return how well the geometry of attention logits [queries, keys, heads] agrees with that of their softmax.

    The softmax is over the keys. The whole tensor is organised, and the matrix of each head on its own, by the
    questionnaire without the refining round.

    masked:     use the probabilities under the tensor's mask instead of the softmax of whole rows
    heads:      heads to organise on their own; all by default
    iterations: of the questionnaire for the whole tensor
    bootstrap:  number of bootstrap samples, at least 40; 0: no intervals
    seed:       seed of the control and the bootstrap
    device:     torch device for organising the whole tensor
    progress:   `progress(done, total)` is called after every organisation; True draws a progress bar

    >>> report = softmax_invariance(planted((20, 20, 8), seed=0)[0], heads=[0, 3], bootstrap=50)
    >>> report["keys: affinity rank correlation"].value > 0.5
    True
    """
    logits, labels, mask = _logits(tensor, masked)
    chosen = whole_numbers(range(logits.shape[2]) if heads is None else heads, "heads", logits.shape[2])
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"heads: expected at least one head, and each once, got {chosen}")
    if 0 < (bootstrap := whole_number(bootstrap, "bootstrap")) < FEWEST_SAMPLES:
        raise InputError(f"bootstrap is {bootstrap}, expected at least {FEWEST_SAMPLES} for an interval of 95%, or 0")
    seed = whole_number(seed, "seed")
    rng = np.random.default_rng(seed)
    control_logits = rng.permuted(logits, axis=1)
    stages = (logits, softmax(logits, mask), softmax(control_logits, mask))
    total, done = 3 + len(chosen), 0

    def organized(array: Floats, device: str | None = None) -> Organization:
        return organize(array, iterations=iterations if array.ndim == 3 else None, refine=False, device=device)

    def report() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(done, total)

    organizations = []
    for stage in stages:
        organizations.append(organized(stage, device))
        report()
    network = [_between(organizations[0], after) for after in organizations[1:]]
    own_heads: list[HeadInvariance] = []
    control_heads: list[HeadInvariance] = []
    for h in chosen:
        before, after, control = (organized(np.ascontiguousarray(stage[:, :, h])) for stage in stages)
        for matrices, other, figures in ((logits, after, own_heads), (control_logits, control, control_heads)):
            queries, keys = _between(before, other)
            fits = _exponents(matrices[:, :, h], before)
            figures.append(HeadInvariance(labels[h], queries, keys, *fits))
        report()
    contrasts = (
        *network_contrasts(organizations, network, bootstrap, rng),
        *head_contrasts(own_heads, control_heads, bootstrap, rng),
    )
    kind = "masked softmax" if masked else "softmax"
    name = tensor.name if isinstance(tensor, NetworkTensor) else ""
    own, of_control = network
    return InvarianceReport(kind, own, of_control, tuple(own_heads), tuple(control_heads), contrasts, name, seed)


def _logits(tensor: NetworkTensor | ArrayInput, masked: bool) -> tuple[Floats, tuple[str, ...], Bools | None]:
    """Return the logits in float64, the labels of the heads, and the mask if it is to be used."""
    if isinstance(tensor, NetworkTensor):
        if tensor.stage != "logits":
            raise InputError("softmax_invariance: the tensor holds probabilities, expected logits")
        if masked and tensor.mask is None:
            raise InputError("softmax_invariance: the tensor has no mask, so masked=True cannot be used")
        return tensor.values.astype(np.float64), tensor.heads, tensor.mask if masked else None
    if masked:
        raise InputError("softmax_invariance: a plain array has no mask, pass a NetworkTensor for masked=True")
    array = to_numpy(checked(tensor, "logits", (3,)))
    return array.astype(np.float64), tuple(map(str, range(array.shape[2]))), None


def _between(before: Organization, after: Organization) -> tuple[Agreement, ...]:
    """Return the agreement of two organisations, axis by axis."""
    sides = zip(before.affinities, before.trees, after.affinities, after.trees, strict=True)
    return tuple(agreement(*side) for side in sides)


def _exponents(logits: Floats, organization: Organization) -> tuple[Holder, Holder]:
    """Return the exponents of the logits f and of the residual of their softmax, both on the trees of f."""
    rows, columns = organization.trees
    residual = paraproduct(logits, rows, columns, "softmax").residual
    both = {0: rows, 1: columns}
    return holder(forward(logits, both), (rows, columns)), holder(forward(residual, both), (rows, columns))
