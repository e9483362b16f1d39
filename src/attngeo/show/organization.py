"""Pictures of an organised network; like the others, without matplotlib's global state."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attngeo.show.hierarchy import axis_labels, compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.organization.controls import Comparison
    from attngeo.organization.invariance import InvarianceReport
    from attngeo.organization.organization import Organization
    from attngeo.organization.tree import Tree

# Okabe and Ito's colours, told apart with every kind of colour vision; controls in greys behind them.
_BLUE, _ORANGE, _GREEN, _PINK, _GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6b6b6b"
_BASES = {
    "trees": (_BLUE, "-", 2.4),
    "shuffled axes": (_GREY, ":", 1.4),
    "dyadic trees": (_ORANGE, "--", 1.4),
    "cosines per head": (_GREEN, "-.", 1.4),
    "cosines": (_PINK, "-.", 1.4),
}
_NAMED = 36  # elements of an axis whose names can still be read


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def save(figure: Figure, path: Path | IO[bytes]) -> None:
    """Draw to a file; letters the font lacks become boxes without a word."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(path)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e6e6e6", linewidth=0.8)
    ax.set_axisbelow(True)


def _title(ax: Axes, title: str, note: str = "") -> None:
    ax.set_title(title, loc="left", fontweight="bold", fontsize=10)
    if note:
        ax.set_title(note, loc="right", fontsize=8, color=_GREY)


def readable(label: str) -> str:
    """A token as it reads: the marks byte-level and sentence-piece vocabularies put for spaces taken out."""
    label = label.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎").strip() or "␣"
    label = label if len(label) <= 12 else label[:11] + "…"
    return label.replace("$", r"\$")  # or it would be read as a formula


def slices_figure(organization: Organization) -> Figure:
    """Single heads as matrices, above in the order given, below in the order of the trees.

    One head of each of the largest folders on the first level with four or more; a matrix has only itself.
    """
    values = organization.values
    solid = values.ndim == 3
    heads = _typical(organization.trees[2]) if solid else [0]
    figure = _figure(2.9 * max(2, len(heads)) + 0.6, 6.2)
    axes = figure.subplots(2, len(heads), squeeze=False)
    orders = [tree.order for tree in organization.trees[:2]]
    for column, head in enumerate(heads):
        matrix = values[:, :, head] if solid else values
        low, high = np.quantile(matrix, (0.01, 0.99))
        title = axis_labels(organization, 2)[head] if solid else "matrix"
        for row, shown in enumerate((matrix, matrix[np.ix_(*orders)])):
            ax = axes[row, column]
            picture = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
            _title(ax, title if row == 0 else "", "as given" if row == 0 else "organised")
            for axis, side in enumerate((ax.yaxis, ax.xaxis)):
                names = axis_labels(organization, axis)
                kept = names if row == 0 else [names[place] for place in orders[axis]]
                outer = column == 0 if axis == 0 else row == 1
                _name(side, kept, ("queries", "keys")[axis] if outer else "")
        bar = figure.colorbar(picture, ax=axes[:, column], location="bottom", shrink=0.8, aspect=30)
        bar.ax.tick_params(labelsize=7)
    return figure


def _name(side: Any, names: Sequence[str], title: str) -> None:
    if len(names) <= _NAMED:
        side.set_ticks(range(len(names)), [readable(name) for name in names], fontsize=5)
        if side.axis_name == "x":
            for label in side.get_ticklabels():
                label.set_rotation(90)
    else:
        side.set_ticks([])
        title = f"{len(names)} {title}" if title else ""
    side.set_label_text(title, fontsize=8)


def _typical(tree: Tree) -> list[int]:
    """The first head of each of the four largest folders of the first level that has four, in tree order."""
    level = next((place for place, width in enumerate(tree.widths) if width >= 4), tree.depth - 1)
    row = tree.levels[level][tree.order]
    sizes = np.bincount(row)
    largest = set(np.argsort(-sizes, kind="stable")[:4].tolist())
    first = {folder: int(tree.order[np.flatnonzero(row == folder)[0]]) for folder in dict.fromkeys(row.tolist())}
    return [head for folder, head in first.items() if folder in largest]


def heads_figure(organization: Organization) -> Figure:
    """The diffusion map of the heads: near one another where they do nearly the same, coloured by layer.

    Left the first two coordinates, which a few outlying heads may take for themselves; right the two among the first
    six that spread the middle half of the heads most, cut to where 96% of them are.
    """
    points = organization.embedding(6)
    points = np.pad(points, ((0, 0), (0, max(0, 3 - points.shape[1]))))  # very few heads have fewer coordinates
    labels = axis_labels(organization, 2)
    layers = np.asarray([_layer(label, place) for place, label in enumerate(labels)])
    figure = _figure(10.5, 5.2)
    axes = figure.subplots(1, 2)
    low, high = np.quantile(points, (0.25, 0.75), axis=0)
    widest = sorted(np.argsort(low - high, kind="stable")[:2].tolist())
    pairs = ((0, 1), (0, 2) if widest == [0, 1] else tuple(widest))
    for ax, pair in zip(axes, pairs, strict=True):
        x, y = points[:, pair[0]], points[:, pair[1]]
        inside = np.full(len(x), True)
        if ax is axes[1]:
            inside = _middle(x) & _middle(y)
        dots = ax.scatter(
            x[inside], y[inside], c=layers[inside], cmap="viridis", vmin=layers.min(), vmax=max(layers.max(), 1),
            s=26, edgecolors="white", linewidths=0.4, zorder=3,
        )  # fmt: skip
        for head in np.flatnonzero(inside)[_outermost(x[inside], y[inside], 40)]:
            ax.annotate(labels[head], (x[head], y[head]), (3, 3), textcoords="offset points", fontsize=5.5)
        ax.set_xlabel(f"diffusion coordinate {pair[0] + 1}")
        ax.set_ylabel(f"diffusion coordinate {pair[1] + 1}")
        outside = compact(labels[head] for head in np.flatnonzero(~inside))
        _title(ax, "", f"outside: {outside}" if 0 < len(outside) < 60 else "")
        _plain(ax)
    _title(axes[0], "heads", "near: nearly the same")
    figure.colorbar(dots, ax=axes, label="layer", shrink=0.85)
    return figure


def _middle(x: Any) -> Any:
    """True but for the outermost 2% at either end that stand far out."""
    low, high = np.quantile(x, (0.02, 0.98))
    margin = 0.25 * (high - low)
    return (x >= low - margin) & (x <= high + margin)


def _layer(label: str, place: int) -> int:
    match = re.fullmatch(r"L(\d+)H\d+", label)
    return int(match[1]) if match else place


def _outermost(x: Any, y: Any, count: int) -> list[int]:
    """Points far from their nearest others first: names there do not lie on one another."""
    spread = [np.ptp(x) or 1.0, np.ptp(y) or 1.0]
    points = np.stack([x / spread[0], y / spread[1]], 1)
    chosen: list[int] = []
    apart = np.full(len(points), np.inf)
    for _ in range(min(count, len(points))):
        # farthest-point order, so that every named point has room
        new = int(np.argmax(apart)) if chosen else int(np.argmax(np.linalg.norm(points - np.median(points, 0), axis=1)))
        if chosen and apart[new] < 0.05:
            break
        chosen.append(new)
        apart = np.minimum(apart, np.linalg.norm(points - points[new], axis=1))
    return chosen


def sparsity_figure(comparison: Comparison) -> Figure:
    """How fast the error falls with the best n coefficients, and how fast coefficients shrink with their supports."""
    figure = _figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for profile in comparison.profiles:
        colour, stroke, width = _BASES.get(profile.name, (_GREY, "-", 1.0))
        curve = profile.sparsity
        share = 100 * curve.counts / curve.counts[-1]
        seen = curve.errors > 0
        left.plot(share[seen], curve.errors[seen], stroke, color=colour, linewidth=width, label=profile.name)
        if profile.holder is not None and len(profile.holder.support):
            fit = profile.holder
            right.plot(fit.support, fit.log_rms, "o", color=colour, markersize=4, label=_exponent(profile.name, fit))
            middle = np.average(fit.log_rms, weights=fit.counts) - fit.rms.slope * np.average(
                fit.support, weights=fit.counts
            )
            right.plot(fit.support, middle + fit.rms.slope * fit.support, stroke, color=colour, linewidth=width)
    left.set(xscale="log", yscale="log", ylim=(3e-3, 1.3))
    left.set_xlabel("share of coefficients kept, %")
    left.set_ylabel("relative l2 error")
    _title(left, "best n terms", "lower is sparser")
    right.set_xlabel("log₂ of the support |R|")
    right.set_ylabel("log₂ rms coefficient")
    _title(right, "regularity", "slope − ½ is the exponent α")
    for ax in (left, right):
        _plain(ax)
        if ax.get_legend_handles_labels()[0]:  # too few coefficients have no exponent to show
            ax.legend(frameon=False, fontsize=8)
    return figure


def _exponent(name: str, fit: Any) -> str:
    return f"{name}: α {fit.exponent:.2f} ± {fit.error:.2f}".replace("-", "−")


def trees_figure(organization: Organization) -> Figure:
    """Every tree from its root (top) to its elements, coloured by where the members of a folder stood before."""
    trees = organization.trees
    figure = _figure(10.5, 1.2 + 2.1 * len(trees))
    axes = figure.subplots(len(trees), 1, squeeze=False)[:, 0]
    for axis, (ax, tree) in enumerate(zip(axes, trees, strict=True)):
        labels = axis_labels(organization, axis)
        place = np.arange(tree.size, dtype=float)
        if axis == 2:
            place = np.asarray([_layer(label, at) for at, label in enumerate(labels)], float)
        levels = tree.levels[:, tree.order]  # [depth, n]
        means = np.stack([(np.bincount(row, place[tree.order]) / np.bincount(row))[row] for row in levels])
        span = (place.min(), max(place.max(), place.min() + 1))
        picture = ax.imshow(means, cmap="viridis", vmin=span[0], vmax=span[1], aspect="auto", interpolation="nearest")
        rows, columns = np.nonzero(np.diff(levels, axis=1))
        ax.vlines(columns + 0.5, rows - 0.5, rows + 0.5, color="white", linewidth=0.7)
        _title(ax, ("queries", "keys", "heads")[axis], f"{tree.size} in {tree.depth} levels")
        ax.set_yticks([0, tree.depth - 1], ["root", "elements"], fontsize=8)
        if tree.size <= 80:
            names = [readable(labels[element]) for element in tree.order]
            ax.set_xticks(range(tree.size), names, rotation=90, fontsize=5)
        else:
            ax.set_xticks([])
        what = "layer" if axis == 2 and _layer(labels[-1], -1) >= 0 else "place in the input" if axis < 2 else "place"
        figure.colorbar(picture, ax=ax, pad=0.01).set_label(f"mean {what}", fontsize=8)
    return figure


def invariance_figure(report: InvarianceReport) -> Figure:
    """Every figure before against after the softmax, beside the broken control; the exponents of single heads."""
    figure = _figure(10.5, 4.8)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [contrast.figure for contrast in report.contrasts]
    for place, contrast in enumerate(report.contrasts):
        colour = _BLUE if contrast.beats_control else _ORANGE
        left.plot([contrast.broken, contrast.value], [place, place], color="#bbbbbb", linewidth=1.5, zorder=1)
        left.plot(contrast.broken, place, "o", color=_GREY, markersize=6, markerfacecolor="white", zorder=2)
        left.plot(contrast.value, place, "o", color=colour, markersize=7, zorder=3)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    for label, marker in (
        ("beyond the control", {"color": _BLUE}),
        ("not beyond it", {"color": _ORANGE}),
        ("broken control", {"color": _GREY, "markerfacecolor": "white"}),
    ):
        left.plot([], [], "o", label=label, **marker)
    left.legend(frameon=False, fontsize=8, loc="lower right")
    _title(left, f"logits and their {report.comparison}")
    for heads, colour, label in ((report.heads_broken, _GREY, "broken control"), (report.heads, _BLUE, "heads")):
        x, y = ([getattr(head, side).exponent for head in heads] for side in ("exponent", "residual"))
        right.scatter(x, y, s=16, color=colour, alpha=0.7, linewidths=0, label=label)
    low, high = right.get_xlim()
    right.axline((low, low), slope=1, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), label="as regular")
    right.axline((low, 2 * low), slope=2, color=_GREY, linewidth=1, linestyle=":", label="twice as regular")
    right.set_xlim(low, high)
    right.set_xlabel("exponent α of the logits")
    right.set_ylabel("exponent α of the residual")
    right.legend(frameon=False, fontsize=8)
    _title(right, "single heads")
    for ax in (left, right):
        _plain(ax)
    return figure
