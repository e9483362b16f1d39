"""What the softmax does to the geometry in figures: of the network, of every head, and of a broken control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.display import Drawable, draw
from attngeo.io.archive import as_plain, load_json, naming_file, save_json
from attngeo.organization.geometry.agreement import Agreement
from attngeo.organization.haar.smoothness import Holder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class HeadInvariance:
    """One head's matrix, organised by itself before and after the softmax."""

    head: str
    queries: Agreement
    keys: Agreement
    exponent: Holder  # of the logits f on their own trees
    residual: Holder  # of softmax(f) less its paraproduct, on the same trees

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> HeadInvariance:
        """From what a file holds, NaN as None."""
        queries, keys = (Agreement.from_plain(plain[side]) for side in ("queries", "keys"))
        exponent, residual = (Holder.from_plain(plain[fit]) for fit in ("exponent", "residual"))
        return cls(plain["head"], queries, keys, exponent, residual)


@dataclass(frozen=True)
class Contrast:
    """A figure, the control's, and the 95% bootstrap interval of how much better the figure is."""

    figure: str
    value: float
    broken: float
    low: float
    high: float

    @property
    def beats_control(self) -> bool:
        return self.low > 0


@dataclass(frozen=True)
class InvarianceReport(Drawable):
    """Network and head figures of a comparison, the same for the broken control, and where they differ.

    >>> report = softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50)
    >>> report["keys: affinity rank correlation"].beats_control
    True
    >>> len(report.heads), len(report.network)
    (8, 3)
    """

    comparison: str  # "softmax" of whole rows, or "masked softmax", which tests the mask too
    network: tuple[Agreement, ...]  # queries, keys, heads of the whole tensor
    network_broken: tuple[Agreement, ...]
    heads: tuple[HeadInvariance, ...]
    heads_broken: tuple[HeadInvariance, ...]
    contrasts: tuple[Contrast, ...]
    name: str = ""  # the model
    seed: int = 0  # of the control and the bootstrap

    def __getitem__(self, figure: str) -> Contrast:
        return {contrast.figure: contrast for contrast in self.contrasts}[figure]

    def rows(self) -> list[dict[str, Any]]:
        """One plain row a head, for tables."""
        return [
            {
                "head": head.head,
                **_flat("queries", head.queries, broken.queries),
                **_flat("keys", head.keys, broken.keys),
                "exponent": head.exponent.exponent,
                "residual exponent": head.residual.exponent,
                "residual exponent, broken": broken.residual.exponent,
            }
            for head, broken in zip(self.heads, self.heads_broken, strict=True)
        ]

    def plot(self) -> Figure:
        """Every figure beside the control's, and the exponents of single heads."""
        return draw("invariance_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write to one .json file."""
        return save_json(path, "invariance report", as_plain(self))

    @classmethod
    def load(cls, path: str | Path) -> InvarianceReport:
        """Read what `save` wrote."""
        stored = load_json(path, "invariance report")
        with naming_file(path):
            for side in ("network", "network_broken"):
                stored[side] = tuple(Agreement.from_plain(axis) for axis in stored[side])
            for side in ("heads", "heads_broken"):
                stored[side] = tuple(HeadInvariance.from_plain(head) for head in stored[side])
            stored["contrasts"] = tuple(Contrast(**_numbers(contrast)) for contrast in stored["contrasts"])
            return cls(**stored)

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, InvarianceReport) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        title = f"{self.name}: " if self.name else ""
        lines = [f"{title}logits against their {self.comparison}, {len(self.heads)} heads one by one"]
        lines.append(f"{'':36}{'value':>8}{'broken':>8}   better by (95% interval)")
        for c in self.contrasts:
            mark = "" if c.beats_control else "   not beyond the control"
            lines.append(f"{c.figure:36}{c.value:8.3f}{c.broken:8.3f}   {c.low:.3f} … {c.high:.3f}{mark}")
        lines += ["", "the trees of the heads, level by level: folders before, after, adjusted information"]
        for name, axes in (("softmax", self.network), ("broken", self.network_broken)):
            levels = [f"{level.folders},{level.folders_other}: {level.information:.2f}" for level in axes[2].levels]
            lines += [f"{name:10}" + "   ".join(some) for name, some in _in_lines(name, levels, 8)]
        return "\n".join(lines)


def _in_lines(name: str, words: Sequence[str], many: int) -> list[tuple[str, Sequence[str]]]:
    """So many words a line, the name before the first."""
    return [("" if start else name, words[start : start + many]) for start in range(0, max(len(words), 1), many)]


def _numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: nan if value is None else value for name, value in plain.items()}


def _flat(axis: str, own: Agreement, broken: Agreement) -> dict[str, float]:
    return {
        f"{axis}: rank correlation": own.rank_correlation,
        f"{axis}: rank correlation, broken": broken.rank_correlation,
        f"{axis}: tree information": own.information,
        f"{axis}: tree information, broken": broken.information,
        f"{axis}: Procrustes": own.procrustes,
        f"{axis}: Procrustes, broken": broken.procrustes,
    }
