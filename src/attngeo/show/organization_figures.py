"""Pictures of an organised network: where its heads lie, its trees, how sparse it is, what the softmax changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.show.canvas import BLUE, GREEN, GREY, LIGHT_GREY, ORANGE, PINK, new_figure, style_axes, token_label, panel_title
from attngeo.show.organization_text import axis_labels, compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.organization.expansion.controls import Comparison
    from attngeo.organization.organization import Organization
    from attngeo.organization.softmax.invariance_report import InvarianceReport
    from attngeo.organization.trees.tree import Tree

_BASES = {
    "trees": (BLUE, "-", 2.4),
    "shuffled axes": (GREY, ":", 1.4),
    "dyadic trees": (ORANGE, "--", 1.4),
    "cosines per head": (GREEN, "-.", 1.4),
    "cosines": (PINK, "-.", 1.4),
    "permuted: trees": (LIGHT_GREY, "-", 1.4),
    "permuted: dyadic trees": (LIGHT_GREY, "--", 1.4),
}


def heads_figure(organization: Organization) -> Figure:
    """The diffusion map of the heads: near one another where they do nearly the same, coloured by layer.

    Left the first two coordinates, which a few outlying heads may take for themselves; right the two among the first
    six that spread the middle half of the heads most, cut to where 96% of them are.
    """
    points = organization.embedding(6)
    points = np.pad(points, ((0, 0), (0, max(0, 3 - points.shape[1]))))  # very few heads have fewer coordinates
    labels = axis_labels(organization, 2)
    layers = np.asarray([_layer(label, place) for place, label in enumerate(labels)])
    figure = new_figure(10.5, 5.2)
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
        panel_title(ax, "", f"outside: {outside}" if 0 < len(outside) < 60 else "")
        style_axes(ax)
    panel_title(axes[0], "heads", "near: nearly the same")
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
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for profile in comparison.profiles:
        colour, stroke, width = _BASES.get(profile.name, (GREY, "-", 1.0))
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
    panel_title(left, "best n terms", "lower is sparser")
    right.set_xlabel("log₂ of the support |R|")
    right.set_ylabel("log₂ rms coefficient")
    panel_title(right, "regularity", "slope − ½ is the exponent α")
    for ax in (left, right):
        style_axes(ax)
        if ax.get_legend_handles_labels()[0]:  # too few coefficients have no exponent to show
            ax.legend(frameon=False, fontsize=8)
    return figure


def _exponent(name: str, fit: Any) -> str:
    return f"{name}: α {fit.exponent:.2f} ± {fit.error:.2f}".replace("-", "−")


def trees_figure(organization: Organization) -> Figure:
    """Every tree from its root (top) to its elements, coloured by where the members of a folder stood before."""
    trees = organization.trees
    figure = new_figure(10.5, 1.2 + 2.1 * len(trees))
    axes = figure.subplots(len(trees), 1, squeeze=False)[:, 0]
    for axis, (ax, tree) in enumerate(zip(axes, trees, strict=True)):
        labels = axis_labels(organization, axis)
        place = np.arange(tree.size, dtype=float)
        if axis == 2:
            place = np.asarray([_layer(label, at) for at, label in enumerate(labels)], float)
        what = "layer" if axis == 2 and _layer(labels[-1], -1) >= 0 else "place in the input" if axis < 2 else "place"
        picture = _strips(ax, tree, labels, place)
        panel_title(ax, ("queries", "keys", "heads")[axis], f"{tree.size} in {tree.depth} levels")
        figure.colorbar(picture, ax=ax, pad=0.01).set_label(f"mean {what}", fontsize=8)
    return figure


def tree_figure(tree: Tree) -> Figure:
    """One tree by itself, its elements by number."""
    figure = new_figure(10.5, 3.0)
    ax = figure.subplots()
    picture = _strips(ax, tree, tuple(map(str, range(tree.size))), np.arange(tree.size, dtype=float))
    panel_title(ax, "tree", f"{tree.size} in {tree.depth} levels")
    figure.colorbar(picture, ax=ax, pad=0.01).set_label("mean place", fontsize=8)
    return figure


def _strips(ax: Axes, tree: Tree, labels: Sequence[str], place: Any) -> Any:
    """A strip for every level, the root above, cut where folders end, coloured by the mean place of their members."""
    levels = tree.levels[:, tree.order]  # [depth, n]
    means = np.stack([(np.bincount(row, place[tree.order]) / np.bincount(row))[row] for row in levels])
    span = (place.min(), max(place.max(), place.min() + 1))
    picture = ax.imshow(means, cmap="viridis", vmin=span[0], vmax=span[1], aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(np.diff(levels, axis=1))
    ax.vlines(columns + 0.5, rows - 0.5, rows + 0.5, color="white", linewidth=0.7)
    ax.set_yticks([0, tree.depth - 1], ["root", "elements"], fontsize=8)
    if tree.size <= 80:
        names = [token_label(labels[element]) for element in tree.order]
        ax.set_xticks(range(tree.size), names, rotation=90, fontsize=5)
    else:
        ax.set_xticks([])
    return picture


def invariance_figure(report: InvarianceReport) -> Figure:
    """Every figure before against after the softmax, beside the broken control; the exponents of single heads."""
    figure = new_figure(10.5, 4.8)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [contrast.figure for contrast in report.contrasts]
    for place, contrast in enumerate(report.contrasts):
        colour = BLUE if contrast.beats_control else ORANGE
        left.plot([contrast.broken, contrast.value], [place, place], color="#bbbbbb", linewidth=1.5, zorder=1)
        left.plot(contrast.broken, place, "o", color=GREY, markersize=6, markerfacecolor="white", zorder=2)
        left.plot(contrast.value, place, "o", color=colour, markersize=7, zorder=3)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    for label, marker in (
        ("beyond the control", {"color": BLUE}),
        ("not beyond it", {"color": ORANGE}),
        ("broken control", {"color": GREY, "markerfacecolor": "white"}),
    ):
        left.plot([], [], "o", label=label, **marker)
    left.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.06), ncols=3)
    panel_title(left, f"logits and their {report.comparison}")
    for heads, colour, label in ((report.heads_broken, GREY, "broken control"), (report.heads, BLUE, "heads")):
        x, y = ([getattr(head, side).exponent for head in heads] for side in ("exponent", "residual"))
        right.scatter(x, y, s=16, color=colour, alpha=0.7, linewidths=0, label=label)
    low, high = right.get_xlim()
    right.axline((low, low), slope=1, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="as regular")
    right.axline((low, 2 * low), slope=2, color=GREY, linewidth=1, linestyle=":", label="twice as regular")
    right.set_xlim(low, high)
    right.set_xlabel("exponent α of the logits")
    right.set_ylabel("exponent α of the residual")
    right.legend(frameon=False, fontsize=8)
    panel_title(right, "single heads")
    for ax in (left, right):
        style_axes(ax)
    return figure
