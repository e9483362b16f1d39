"""Figures of an organised network: the map of its heads, its trees, its sparsity, and what the softmax changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attngeo.show.canvas import (
    BLUE,
    DASHED,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PAGE,
    PINK,
    TINY,
    for_print,
    new_figure,
    panel_title,
    style_axes,
    token_label,
)
from attngeo.show.organization_text import axis_labels, compact_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

    from attngeo.arrays import Floats
    from attngeo.organization.expansion import SparsityControls
    from attngeo.organization.invariance import InvarianceReport
    from attngeo.organization.organize import Organization
    from attngeo.organization.smoothness import Holder
    from attngeo.organization.tree import Tree

_AXES = ("queries", "keys", "heads")
_LABEL = (0.17, 0.055)  # width and height of the label of a head, as shares of the range of the points

# Basis → colour, line style, line width
BASES = {
    "trees": (BLUE, "-", 1.8),
    "shuffled axes": (GREY, ":", 1.1),
    "dyadic trees": (ORANGE, "--", 1.1),
    "cosines per head": (GREEN, "-.", 1.1),
    "cosines": (PINK, "-.", 1.1),
    "permuted: trees": (LIGHT_GREY, "-", 1.1),
    "permuted: dyadic trees": (LIGHT_GREY, "--", 1.1),
}


@for_print
def heads_figure(organization: Organization) -> Figure:
    """Draw the diffusion map of the heads, coloured by layer: similar heads lie close to one another.

    The left panel shows the first two coordinates, which a few outlying heads may dominate. The right panel shows the
    two of the first six coordinates with the largest interquartile range, cropped to the central 96% of the heads.
    """
    points = head_coordinates(organization)
    labels = axis_labels(organization, 2)
    layers = np.asarray([layer_of(label, index) for index, label in enumerate(labels)])
    figure = new_figure(PAGE, 3.5)
    axes = figure.subplots(1, 2)
    for ax, (pair, inside) in zip(axes, coordinate_pairs(points), strict=True):
        x, y = points[:, pair[0]], points[:, pair[1]]
        dots = ax.scatter(
            x[inside], y[inside], c=layers[inside], cmap="viridis", vmin=layers.min(), vmax=max(layers.max(), 1),
            s=16, edgecolors="white", linewidths=0.4, zorder=3,
        )  # fmt: skip
        for head in np.flatnonzero(inside)[_spread_out(x[inside], y[inside], 16)]:
            ax.annotate(labels[head], (x[head], y[head]), (3, 3), textcoords="offset points", fontsize=TINY)
        ax.set_xlabel(f"diffusion coordinate {pair[0] + 1}")
        ax.set_ylabel(f"diffusion coordinate {pair[1] + 1}")
        outside = compact_labels(labels[head] for head in np.flatnonzero(~inside))
        panel_title(ax, "", f"outside: {outside}" if 0 < len(outside) < 60 else "")
        style_axes(ax)
    panel_title(axes[0], "heads", "close: similar")
    figure.colorbar(dots, ax=axes, label="layer", shrink=0.85)
    return figure


def head_coordinates(organization: Organization) -> Floats:
    """Return the first diffusion coordinates of the heads, [heads, 3 to 6]; very few heads have fewer, then 0."""
    points = organization.embedding(6)  # [heads, ≤ 6]
    return np.pad(points, ((0, 0), (0, max(0, 3 - points.shape[1]))))


def coordinate_pairs(points: Floats) -> list[tuple[tuple[int, int], NDArray[np.bool_]]]:
    """Return the two pairs of coordinates that are drawn, and which heads [heads] are drawn with each.

    The first two coordinates, with all heads; and the two with the largest interquartile range, without outliers.
    """
    low, high = np.quantile(points, (0.25, 0.75), axis=0)
    first, second = sorted(np.argsort(low - high, kind="stable")[:2].tolist())
    widest = (0, 2) if (first, second) == (0, 1) else (first, second)
    return [
        ((0, 1), np.full(len(points), True)),
        (widest, _central(points[:, widest[0]]) & _central(points[:, widest[1]])),
    ]


def _central(x: Floats) -> NDArray[np.bool_]:
    """Return which values lie within the central 96%, widened by a quarter of its range at either end."""
    low, high = np.quantile(x, (0.02, 0.98))
    margin = 0.25 * (high - low)
    inside: NDArray[np.bool_] = (x >= low - margin) & (x <= high + margin)
    return inside


def layer_of(label: str, index: int) -> int:
    """Return the layer that a head's label names, or `index` where it names none."""
    match = re.fullmatch(r"L(\d+)H\d+", label)
    return int(match[1]) if match else index


def _spread_out(x: Floats, y: Floats, count: int) -> list[int]:
    """Return the indices of at most `count` points far enough apart for their labels not to overlap.

    They are chosen in farthest-point order, beginning with the point farthest from the median.
    """
    spread = [np.ptp(x) or 1.0, np.ptp(y) or 1.0]
    points = np.stack([x / spread[0] / _LABEL[0], y / spread[1] / _LABEL[1]], 1)  # [points, 2], in labels
    chosen: list[int] = []
    distance = np.full(len(points), np.inf)  # to the nearest chosen point
    for _ in range(min(count, len(points))):
        from_median = np.abs(points - np.median(points, 0)).max(1)
        new = int(np.argmax(distance if chosen else from_median))
        if distance[new] < 1:
            break
        chosen.append(new)
        distance = np.minimum(distance, np.abs(points - points[new]).max(1))
    return chosen


@for_print
def sparsity_figure(comparison: SparsityControls) -> Figure:
    """Draw the best-n-term error of each basis, and how its coefficients shrink with the size of their supports."""
    figure = new_figure(PAGE, 3.8)
    left, right = figure.subplots(1, 2)
    for profile in comparison.profiles:
        colour, line_style, width = BASES.get(profile.name, (GREY, "-", 1.0))
        curve = profile.sparsity
        share = 100 * curve.counts / curve.counts[-1]
        drawn = curve.errors > 0  # the axis is logarithmic
        left.plot(share[drawn], curve.errors[drawn], line_style, color=colour, linewidth=width, label=profile.name)
        if profile.holder is not None and len(profile.holder.support):
            fit = profile.holder
            right.plot(
                fit.support, fit.log_rms, "o", color=colour, markersize=3, label=exponent_label(profile.name, fit)
            )
            right.plot(fit.support, fit.line(fit.support), line_style, color=colour, linewidth=width)
    left.set(xscale="log", yscale="log", ylim=(3e-3, 1.3))
    left.set_xlabel("share of coefficients kept, %")
    left.set_ylabel("relative l2 error")
    panel_title(left, "best n terms", "lower is sparser")
    right.set_xlabel("log₂ of the support |R|")
    right.set_ylabel("log₂ rms coefficient")
    panel_title(right, "regularity", "slope − ½ is the exponent α")
    left.legend(frameon=False)
    if right.get_legend_handles_labels()[0]:  # an array with few coefficients has no exponent to show
        right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    for ax in (left, right):
        style_axes(ax)
    return figure


def exponent_label(name: str, fit: Holder) -> str:
    """Return the name of a basis with its exponent and the standard error."""
    return f"{name}: α {fit.exponent:.2f} ± {fit.error:.2f}".replace("-", "−")


@for_print
def trees_figure(organization: Organization) -> Figure:
    """Draw each tree from its root (top) to its elements; the colour is the mean position, or layer, of a folder."""
    trees = organization.trees
    figure = new_figure(PAGE, 0.6 + 1.6 * len(trees))
    axes = figure.subplots(len(trees), 1, squeeze=False)[:, 0]
    for axis, (ax, tree) in enumerate(zip(axes, trees, strict=True)):
        labels = axis_labels(organization, axis)
        position = np.arange(tree.size, dtype=float)
        if axis == 2:
            position = np.asarray([layer_of(label, index) for index, label in enumerate(labels)], float)
        has_layers = axis == 2 and layer_of(labels[-1], -1) >= 0
        colour = "layer" if has_layers else "position"
        image = _draw_tree(ax, tree, labels, position)
        panel_title(ax, _AXES[axis], f"{tree.size} {_AXES[axis]} in {tree.depth} levels")
        figure.colorbar(image, ax=ax, pad=0.01).set_label(f"mean {colour}")
    return figure


@for_print
def tree_figure(tree: Tree) -> Figure:
    """Draw one tree from its root (top) to its elements, which are labelled by index."""
    figure = new_figure(PAGE, 2.2)
    ax = figure.subplots()
    image = _draw_tree(ax, tree, tuple(map(str, range(tree.size))), np.arange(tree.size, dtype=float))
    panel_title(ax, "tree", f"{tree.size} elements in {tree.depth} levels")
    figure.colorbar(image, ax=ax, pad=0.01).set_label("mean position")
    return figure


def _draw_tree(ax: Axes, tree: Tree, labels: Sequence[str], position: Floats) -> AxesImage:
    """Draw one strip per level, divided where folders end, each folder in the colour of its mean `position` [n]."""
    levels = tree.levels[:, tree.order]  # [depth, n]
    means = np.stack([(np.bincount(row, position[tree.order]) / np.bincount(row))[row] for row in levels])
    low, high = position.min(), max(position.max(), position.min() + 1)
    image = ax.imshow(means, cmap="viridis", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(np.diff(levels, axis=1))
    ax.vlines(columns + 0.5, rows - 0.5, rows + 0.5, color="white", linewidth=0.7)
    ax.set_yticks([0, tree.depth - 1], ["root", "elements"])
    if tree.size <= 64:
        names = [token_label(labels[element]) for element in tree.order]
        ax.set_xticks(range(tree.size), names, rotation=90, fontsize=TINY)
    else:
        ax.set_xticks([])
    return image


@for_print
def invariance_figure(report: InvarianceReport) -> Figure:
    """Draw each measure of agreement between logits and softmax with its control, and the exponents of single heads."""
    figure = new_figure(PAGE, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [contrast.figure for contrast in report.contrasts]
    for row, contrast in enumerate(report.contrasts):
        colour = BLUE if contrast.beats_control else ORANGE
        left.plot([contrast.control, contrast.value], [row, row], color=LIGHT_GREY, linewidth=1.5, zorder=1)
        left.plot(contrast.control, row, "o", color=GREY, markersize=4, markerfacecolor="white", zorder=2)
        left.plot(contrast.value, row, "o", color=colour, markersize=4.5, zorder=3)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    for label, marker in (
        ("better than the control", {"color": BLUE}),
        ("not better", {"color": ORANGE}),
        ("control: rows permuted", {"color": GREY, "markerfacecolor": "white"}),
    ):
        left.plot([], [], "o", label=label, **marker)
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.06), ncols=3)
    panel_title(left, f"logits and their {report.comparison}")
    for heads, colour, label in ((report.heads_control, GREY, "control"), (report.heads, BLUE, "heads")):
        x, y = ([getattr(head, side).exponent for head in heads] for side in ("exponent", "residual"))
        right.scatter(x, y, s=8, color=colour, alpha=0.7, linewidths=0, label=label)
    low, high = right.get_xlim()
    right.axline((low, low), slope=1, color=GREY, linewidth=1, linestyle=DASHED, label="equally regular")
    right.axline((low, 2 * low), slope=2, color=GREY, linewidth=1, linestyle=":", label="twice as regular")
    right.set_xlim(low, high)
    right.set_xlabel("exponent α of the logits")
    right.set_ylabel("exponent α of the residual")
    right.legend(frameon=False)
    panel_title(right, "single heads")
    for ax in (left, right):
        style_axes(ax)
    return figure
