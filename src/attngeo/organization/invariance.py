"""Softmax invariance: agreement of the geometry before and after the softmax, compared with a control.

The control permutes the values inside each row of each head before the softmax: each row keeps its values and loses
their places. A figure counts as evidence if the 95% interval of its advantage over the control lies above 0. Heads are
what varies from sample to sample: figures of pairs of heads come from random halves of the heads, means over single
heads from a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from attngeo.arguments import whole_number, whole_numbers
from attngeo.arrays import ArrayInput, Bools, Floats, Ints, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json, states_options
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.affinity import diffusion_map
from attngeo.organization.agreement import (
    Agreement,
    agreement,
    level_agreement,
    mean_information,
    procrustes,
    rank_correlation,
)
from attngeo.organization.checks import ByValue, checked
from attngeo.organization.coefficients import Holder, holder
from attngeo.organization.grow import flexible_tree
from attngeo.organization.haar import forward
from attngeo.organization.organize import Organization, organize
from attngeo.organization.paraproduct import paraproduct
from attngeo.organization.tensor import NetworkTensor, softmax

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row: TypeAlias = dict[str, str | float]  # column name → value


# Figures of an agreement: name, column of `rows`, attribute, sign that makes larger mean better.
FIGURES = (
    ("affinity rank correlation", "rank correlation", "rank_correlation", 1),
    ("tree information", "tree information", "information", 1),
    ("Procrustes distance", "Procrustes", "procrustes", -1),
)


@dataclass(frozen=True)
class HeadInvariance:
    """The matrix of one head, organised on its own before and after the softmax."""

    head: str
    queries: Agreement
    keys: Agreement
    exponent: Holder  # of the logits f on their own trees
    residual: Holder  # of softmax(f) minus its paraproduct, on the same trees


@dataclass(frozen=True)
class Contrast:
    """A figure, the same figure of the control, and the 95% interval of the difference."""

    figure: str
    value: float
    control: float
    low: float  # bounds of the difference, positive where the figure is better than the control
    high: float

    @property
    def has_interval(self) -> bool:
        """Tell whether there were enough heads and samples for an interval."""
        return not math.isnan(self.low)

    @property
    def beats_control(self) -> bool:
        """Tell whether the whole interval is on the better side of 0."""
        return self.low > 0


@dataclass(frozen=True, eq=False)
class InvarianceReport(ByValue, Drawable):
    """Agreement of the geometry before and after the softmax, for the network and its heads, and for the control.

    >>> report = softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50)
    >>> report["keys: affinity rank correlation"].beats_control
    True
    >>> len(report.heads), len(report.network)
    (8, 3)
    """

    comparison: str  # "softmax" of whole rows, or "masked softmax", which also tests the mask
    network: tuple[Agreement, ...]  # of the whole tensor: queries, keys, heads
    network_control: tuple[Agreement, ...]  # the same for the control
    heads: tuple[HeadInvariance, ...]
    heads_control: tuple[HeadInvariance, ...]  # the same for the control
    contrasts: tuple[Contrast, ...]
    name: str = ""  # name of the model
    seed: int = 0  # seed of the control and the bootstrap

    def __getitem__(self, figure: str) -> Contrast:
        """Return a figure with its control, for example report["keys: tree information"]."""
        return {contrast.figure: contrast for contrast in self.contrasts}[figure]

    def rows(self) -> list[Row]:
        """Return one row per head, for tables; columns that end in "control" belong to the control."""
        rows = []
        for head, control in zip(self.heads, self.heads_control, strict=True):
            row: Row = {"head": head.head}
            for axis in ("queries", "keys"):
                for _, column, attribute, _ in FIGURES:
                    row[f"{axis}: {column}"] = getattr(getattr(head, axis), attribute)
                    row[f"{axis}: {column}, control"] = getattr(getattr(control, axis), attribute)
            row["exponent"] = head.exponent.exponent
            row["residual exponent"] = head.residual.exponent
            row["residual exponent, control"] = control.residual.exponent
            rows.append(row)
        return rows

    def plot(self) -> Figure:
        """Return a figure that shows all figures with their controls, and the exponents of single heads."""
        return draw("invariance_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the report to one .json file and return its path."""
        return save_json(path, "invariance report", as_plain(self), of=self)

    @classmethod
    def load(cls, path: str | Path) -> InvarianceReport:
        """Return the report that `save` wrote."""
        stored = load_json(path, "invariance report")
        with naming_file(path):
            report = from_plain(cls, stored)
            for side, axes in (("network", report.network), ("network_control", report.network_control)):
                if len(axes) != 3:
                    raise InputError(f"{side} has {len(axes)} axes, expected queries, keys and heads")
            if len(report.heads) != len(report.heads_control):
                raise InputError(f"has {len(report.heads)} heads and {len(report.heads_control)} in the control")
            return report

    def __repr__(self) -> str:
        title = f"{self.name}: " if self.name else ""
        heads = "1 single head" if len(self.heads) == 1 else f"{len(self.heads)} single heads"
        lines = [f"{title}logits against their {self.comparison}, {heads}"]
        lines.append(f"{'':36}{'value':>8}{'control':>8}   better by (95% interval)")
        not_better = [c for c in self.contrasts if c.has_interval and not c.beats_control]
        for c in self.contrasts:
            mark = "   ✗" if c in not_better else ""
            interval = f"{c.low:.3f} … {c.high:.3f}" if c.has_interval else "too few for an interval"
            lines.append(f"{c.figure:36}{c.value:8.3f}{c.control:8.3f}   {interval}{mark}")
        if not_better:
            lines.append("✗: not better than the control")
        lines += ["", "head trees, level by level: folders before, folders after: adjusted mutual information"]
        for name, axes in (("softmax", self.network), ("control", self.network_control)):
            levels = [f"{level.folders},{level.folders_other}: {level.information:.2f}" for level in axes[2].levels]
            lines += [f"{title:10}" + "   ".join(some) for title, some in _in_lines(name, levels, 5)]
        return "\n".join(lines)


def _in_lines(name: str, words: Sequence[str], count: int) -> list[tuple[str, Sequence[str]]]:
    """Return the words in lines of `count` words, with the name in front of the first line."""
    return [("" if start else name, words[start : start + count]) for start in range(0, max(len(words), 1), count)]


TREE_SPLITS = 50  # of the heads into halves, for the standard error of the tree information


def network_contrasts(
    organizations: list[Organization], network: list[tuple[Agreement, ...]], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """Return the contrasts of the head axis of the whole tensor.

    The bootstrap draws heads: rows and columns of the affinities. The diffusion maps are those of the affinities drawn.
    """
    before, after, control = (org.affinities[2] for org in organizations)

    def figures(drawn: Ints, other: Floats) -> tuple[float, float]:
        cut = np.ix_(drawn, drawn)
        distance = procrustes(diffusion_map(before[cut]), diffusion_map(other[cut]))
        return rank_correlation(before[cut], other[cut]), -distance  # negative, because smaller is better

    draws = half_samples(len(before), bootstrap, rng)
    better = np.asarray([np.subtract(figures(d, after), figures(d, control)) for d in draws]).reshape(-1, 2)
    own, of_control = (side[2] for side in network)
    information = own.information - of_control.information
    width = _information_error(before, after, control, draws[:TREE_SPLITS]) * student(len(before))
    return [
        Contrast("heads: affinity rank correlation", own.rank_correlation, of_control.rank_correlation,
                 *_interval(better[:, 0])),
        Contrast("heads: tree information", own.information, of_control.information,
                 information - width, information + width),
        Contrast("heads: Procrustes distance", own.procrustes, of_control.procrustes, *_interval(better[:, 1])),
    ]  # fmt: skip


def _information_error(before: Floats, after: Floats, control: Floats, halves: Sequence[Ints]) -> float:
    """Return the standard error of the tree information minus that of the control; NaN where no tree has a level.

    It is the root mean square of half the difference between a half of the heads and the other half, with trees that
    are grown for each: drawing elements of fixed trees would leave out how much the trees themselves depend on the
    heads. A difference of halves is free of the bias of a figure of fewer heads.
    """

    def information(drawn: Ints) -> float:
        cut = np.ix_(drawn, drawn)
        tree, *others = (flexible_tree(affinity[cut]) for affinity in (before, after, control))
        own, of_control = (mean_information(level_agreement(tree, other)) for other in others)
        return own - of_control

    every = np.arange(len(before))
    parts = [(half, np.setdiff1d(every, half)) for half in halves if len(half) < len(every)]  # not of a single head
    differences = [(information(half) - information(rest)) / 2 for half, rest in parts]
    known = np.asarray(differences)[np.isfinite(differences)]
    return float(np.sqrt(np.mean(known**2))) if len(known) else np.nan


def half_samples(n: int, count: int, rng: np.random.Generator) -> list[Ints]:
    """Return `count` random halves of 0 … n − 1.

    A figure of pairs of heads cannot draw a head twice, because its pair with itself would count as two heads that
    agree. The mean of n // 2 of n numbers, drawn without repetition, has the variance of the mean of n new numbers: the
    spread of the figure over halves is its standard error.
    """
    return [rng.permutation(n)[: max(1, n // 2)] for _ in range(count)]


def head_contrasts(
    heads: list[HeadInvariance], control: list[HeadInvariance], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """Return the contrasts of means over single heads; the bootstrap draws heads."""
    draws = rng.integers(0, len(heads), (bootstrap, len(heads)))
    wider = widening(len(heads))
    contrasts = []
    figures = [(f"{axis}: {name}", sign, f"{axis}.{attribute}") for axis in ("queries", "keys")
               for name, _, attribute, sign in FIGURES]  # fmt: skip
    figures += [
        ("exponent of the logits", 1, "exponent.exponent"),
        ("exponent of the residual", 1, "residual.exponent"),
    ]
    for name, sign, path in figures:
        a, b = (np.asarray(list(map(attrgetter(path), side))) for side in (heads, control))
        better = sign * (a - b)
        # One head says nothing about the spread between heads.
        known = np.isfinite(better).all() and len(heads) > 1
        means = better[draws].mean(1) if known else np.full(bootstrap, np.nan)  # [bootstrap]
        spread = better.mean() + wider * (means - better.mean())
        contrasts.append(Contrast(name, float(a.mean()), float(b.mean()), *_interval(spread)))
    return contrasts


def widening(n: int) -> float:
    """Return by how much the bootstrap interval of a mean of n values has to be wider to hold the mean in 95% of cases.

    √(n/(n − 1)), because the bootstrap has the variance with the denominator n, times the quantile of Student's t over
    that of the normal distribution; 1 for a single value, which has no interval.

    >>> round(widening(4), 2), round(widening(16), 2), round(widening(270), 3)
    (1.87, 1.12, 1.006)
    """
    from scipy.stats import norm

    return float(np.sqrt(n / (n - 1)) * student(n) / norm.ppf(0.975)) if n > 1 else 1.0


def student(n: int) -> float:
    """Return how many standard errors a 95% interval of a mean of n values reaches to each side; NaN for one value."""
    from scipy.stats import t

    return float(t.ppf(0.975, n - 1)) if n > 1 else np.nan


def _interval(draws: Floats) -> tuple[float, float]:
    """Return the 95% interval of the finite bootstrap values."""
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (np.nan, np.nan)
    return float(low), float(high)


FEWEST_SAMPLES = 40  # of the bootstrap: a 95% interval leaves out one sample in 40 on each side


@accepts_progress_bar
@states_options
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
