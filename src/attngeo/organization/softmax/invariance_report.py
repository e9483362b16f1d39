"""The result of `softmax_invariance`: figures of the network and of every head, together with those of the control.

The control permutes the values inside each row of each head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json
from attngeo.organization.geometry.agreement import Agreement
from attngeo.organization.haar.smoothness import Holder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = dict[str, str | float]  # column name → value


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


@dataclass(frozen=True)
class InvarianceReport(Drawable):
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
        return [
            {
                "head": head.head,
                **_flat("queries", head.queries, control.queries),
                **_flat("keys", head.keys, control.keys),
                "exponent": head.exponent.exponent,
                "residual exponent": head.residual.exponent,
                "residual exponent, control": control.residual.exponent,
            }
            for head, control in zip(self.heads, self.heads_control, strict=True)
        ]

    def plot(self) -> Figure:
        """Return a figure that shows all figures with their controls, and the exponents of single heads."""
        return draw("invariance_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the report to one .json file and return its path."""
        return save_json(path, "invariance report", as_plain(self))

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

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, InvarianceReport) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

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


def _flat(axis: str, own: Agreement, control: Agreement) -> dict[str, float]:
    """Return the columns of one axis for `rows`."""
    return {
        f"{axis}: rank correlation": own.rank_correlation,
        f"{axis}: rank correlation, control": control.rank_correlation,
        f"{axis}: tree information": own.information,
        f"{axis}: tree information, control": control.information,
        f"{axis}: Procrustes": own.procrustes,
        f"{axis}: Procrustes, control": control.procrustes,
    }
