"""Organised networks as figures and as sections of a page.

heads_figure, head_map_section        the diffusion map of the heads
head_tree_section                     the tree of the heads beside their affinity
trees_figure, tree_figure             trees from their root to their elements
sparsity_figure, sparsity_section     best-n-term curves and regularity, with controls
invariance_figure, invariance_section the geometry before and after the softmax
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats
from attngeo.charts import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PAGE,
    PINK,
    WHITE,
    Axis,
    Bar,
    Figure,
    Heatmap,
    Line,
    Panel,
    Points,
    Series,
    Text,
    token_label,
)
from attngeo.show.matplotlib import drawn
from attngeo.show.organization_text import AXES, axis_labels, compact_labels
from attngeo.show.page.section import PageFigure, Section, columns
from attngeo.show.plotly import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from numpy.typing import NDArray

    from attngeo.organization.expansion import SparsityControls
    from attngeo.organization.invariance import InvarianceReport
    from attngeo.organization.organize import Organization
    from attngeo.organization.tree import Tree


# The map of the heads

_MAP_READING = (
    "Each dot is one head, coloured by its layer; heads that treat this input alike lie close together. The first "
    "figure shows the two leading coordinates, which a few unusual heads may dominate. The second shows the two "
    "coordinates that spread most heads apart, without the outliers. A click selects a head."
)


def heads_figure(organization: Organization) -> Drawing:
    """Draw the diffusion map of the heads, coloured by layer: similar heads lie close to one another.

    The left panel shows the first two coordinates, which a few outlying heads may dominate. The right panel shows the
    two of the first six coordinates with the largest interquartile range, cropped to the central 96% of the heads.
    """
    labels = axis_labels(organization, 2)
    panels = []
    for at, (panel, inside) in enumerate(_map_panels(organization)):
        dots: Points = panel.series[0]  # type: ignore[assignment]
        named = _spread_out(np.asarray(dots.x), np.asarray(dots.y), 16)
        names = Text([dots.x[i] for i in named], [dots.y[i] for i in named], [dots.names[i] for i in named], small=True)
        outside = compact_labels(labels[head] for head in np.flatnonzero(~inside))
        note = f"outside: {outside}" if 0 < len(outside) < 60 else "" if at else "close: similar"
        series: list[Series] = [replace(dots, bar=Bar("layer", of="row", whole=True) if at else None), names]
        panels.append(replace(panel, title="" if at else "heads", series=series, note=note))
    return drawn(Figure(panels, 2, size=(PAGE, 3.5)))


def head_map_section(organization: Organization, *, id: str = "head-map") -> Section:
    """Return two views of the diffusion map of the heads.

    >>> from attngeo.organization import organize, planted
    >>> section = head_map_section(organize(planted((16, 12, 8), seed=0)[0]))
    >>> [len(figure.chart.panels[0].series[0].x) for figure in section.figures][0]
    8
    """
    figures, notes = [], []
    for number, (panel, inside) in enumerate(_map_panels(organization), 1):
        dots: Points = panel.series[0]  # type: ignore[assignment]
        sides = [axis.title.removeprefix("diffusion ") for axis in (panel.x, panel.y)]
        label = f"Diffusion map of {len(dots.x)} heads, {panel.title.partition(',')[0]}, coloured by layer."
        table = {"head": dots.names, "layer": dots.shade, sides[0]: rounded(dots.x), sides[1]: rounded(dots.y)}
        figures.append(PageFigure(f"{id}-{number}", label, Figure([panel], height=400), table))
        if not inside.all():
            labels = axis_labels(organization, 2)
            outside = compact_labels(labels[head] for head in np.flatnonzero(~inside))
            notes.append(f"Outside of the second figure: {outside}.")
    return Section(id, "Map of the heads", _MAP_READING, tuple(figures), tuple(notes))


def _map_panels(organization: Organization) -> list[tuple[Panel, NDArray[np.bool_]]]:
    """Return two views of the diffusion map, each with the heads [heads] that are in it."""
    labels = axis_labels(organization, 2)
    layers = [layer_of(label, index) for index, label in enumerate(labels)]
    points = head_coordinates(organization)
    panels = []
    for (first, second), inside in coordinate_pairs(points):
        shown = np.flatnonzero(inside).tolist()
        dots = Points(
            points[shown, first].tolist(),
            points[shown, second].tolist(),
            size=9,
            edge=True,
            hover="{name}",
            names=[labels[head] for head in shown],
            shade=[layers[head] for head in shown],
            limits=(min(layers), max(*layers, min(layers) + 1)),
            bar=Bar("layer", whole=True),
        )
        title = f"coordinates {first + 1} and {second + 1}, {len(shown)} of {len(labels)} heads"
        x, y = Axis(f"diffusion coordinate {first + 1}"), Axis(f"diffusion coordinate {second + 1}")
        panels.append((Panel(title, [dots], x, y), inside))
    return panels


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

    A label is 0.17 of the range wide and 0.055 of it high. The points are chosen in farthest-point order, beginning
    with the one farthest from the median.
    """
    spread = [np.ptp(x) or 1.0, np.ptp(y) or 1.0]
    points = np.stack([x / spread[0] / 0.17, y / spread[1] / 0.055], 1)  # [points, 2], in labels
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


# Trees

_TREE_READING = (
    "The tree on the left joins heads that treat this input alike, from all heads at the root to single heads, the "
    "dots, which are coloured by layer. The map shows the affinity of each pair of heads in the order of the tree: 1 "
    "means that two heads give the same organised matrix, and bright blocks on the diagonal are groups of similar "
    "heads. Values above the upper end of the colour bar have its colour. A click on a dot selects that head."
)


def trees_figure(organization: Organization) -> Drawing:
    """Draw each tree from its root (top) to its elements; the colour is the mean position, or layer, of a folder."""
    panels = []
    for axis, tree in enumerate(organization.trees):
        labels = axis_labels(organization, axis)
        position = np.arange(tree.size, dtype=float)
        if axis == 2:
            position = np.asarray([layer_of(label, index) for index, label in enumerate(labels)], float)
        colour = "layer" if axis == 2 and layer_of(labels[-1], -1) >= 0 else "position"
        note = f"{tree.size} {AXES[axis]} in {tree.depth} levels"
        panels.append(_strips(tree, labels, position, AXES[axis], note, f"mean {colour}"))
    return drawn(Figure(panels, size=(PAGE, 0.6 + 1.6 * len(panels))))


def tree_figure(tree: Tree) -> Drawing:
    """Draw one tree from its root (top) to its elements, which are labelled by index."""
    labels, note = tuple(map(str, range(tree.size))), f"{tree.size} elements in {tree.depth} levels"
    panel = _strips(tree, labels, np.arange(tree.size, dtype=float), "tree", note, "mean position")
    return drawn(Figure([panel], size=(PAGE, 2.2)))


def _strips(tree: Tree, labels: Sequence[str], position: Floats, title: str, note: str, colour: str) -> Panel:
    """Return one strip per level, divided where folders end, each folder in the colour of its mean `position` [n]."""
    levels = tree.levels[:, tree.order]  # [depth, n]
    means = np.stack([(np.bincount(row, position[tree.order]) / np.bincount(row))[row] for row in levels])
    limits = (position.min(), max(position.max(), position.min() + 1))
    rows, places = np.nonzero(np.diff(levels, axis=1))
    ends = np.stack([rows - 0.5, rows + 0.5, np.full(len(rows), np.nan)], 1).ravel()
    walls = Line(np.repeat(places + 0.5, 3), ends, WHITE, width=1)
    names = tuple(token_label(labels[element]) for element in tree.order)
    x = Axis(categories=names) if tree.size <= 64 else Axis(flat=True)
    y = Axis(range=(-0.5, tree.depth - 0.5), reverse=True, ticks={0: "root", tree.depth - 1: "elements"})
    return Panel(title, [Heatmap(means, limits, bar=Bar(colour)), walls], x, y, note)


def head_tree_section(organization: Organization, *, id: str = "head-tree") -> Section:
    """Return one figure with the tree and the affinity of the heads of an organised network.

    >>> from attngeo.organization import organize, planted
    >>> (figure,) = head_tree_section(organize(planted((16, 12, 8), seed=0)[0])).figures
    >>> [trace["type"] for trace in figure.plotly["data"]]
    ['scatter', 'scatter', 'heatmap']
    """
    tree, affinity = organization.trees[2], organization.affinities[2]  # [heads, heads]
    labels = axis_labels(organization, 2)
    order = [int(head) for head in tree.order]
    names, count = tuple(labels[head] for head in order), len(order)
    reordered = affinity[np.ix_(order, order)]
    apart = reordered[~np.eye(count, dtype=bool)]
    limits = (float(apart.min(initial=0.0)), float(np.quantile(apart, 0.995)) if apart.size else 1.0)
    heat = Heatmap(np.round(reordered, 4), limits, bar=Bar("affinity"), hover="{y} and {x}: {z:.3f}")
    layers = [layer_of(labels[head], head) for head in order]
    x, y = _branches(tree)
    leaves = Points(
        [tree.depth - 1] * count,
        list(range(count)),
        size=6,
        edge=True,
        hover="{name}",
        names=names,
        shade=layers,
        limits=(min(layers), max(layers)),
    )
    down = Axis(categories=names, range=(-0.5, count - 0.5), reverse=True, grid=False)
    levels = Axis(range=(-0.3, tree.depth - 0.7), ticks={0: "root"}, grid=False)
    panels = [
        Panel("head tree and affinity", [Line(x, y, GREY, width=1.2), leaves], levels, down),
        Panel("", [heat], Axis("heads in the same order", categories=names, flat=True, grid=False), down),
    ]
    chart = Figure(panels, 2, (0.26, 0.7), same="y", height=min(620, max(280, 8 * count)))
    table = {"head": list(names)} | dict(zip(names, map(rounded, reordered.T), strict=True))
    label = f"Tree of {count} heads, and the affinity of each pair of them in the order of the tree."
    return Section(id, "Heads that act alike", _TREE_READING, (PageFigure(f"{id}-1", label, chart, table),))


def _branches(tree: Tree) -> tuple[list[int | None], list[int | None]]:
    """Return the branches of a tree as one line: levels, and places in its order.

    A folder stands beside its middle member, so that tree and map have the same vertical axis.
    """
    x: list[int | None] = []
    y: list[int | None] = []
    middles = []
    for row in tree.levels[:, tree.order]:  # [n]; the members of a folder lie side by side
        members = [np.flatnonzero(row == folder) for folder in np.unique(row)]
        middles.append({int(row[inside[0]]): int(inside[(len(inside) - 1) // 2]) for inside in members})
    for level, (above, below) in enumerate(pairwise(middles)):
        for child in below.values():
            parent = above[int(tree.levels[level, tree.order[child]])]
            x += [level, level, level + 1, None]
            y += [parent, child, child, None]
    return x, y


# Sparsity

# Basis → colour, line style, line width
_BASES = {
    "trees": (BLUE, "-", 1.8),
    "shuffled axes": (GREY, ":", 1.1),
    "dyadic trees": (ORANGE, "--", 1.1),
    "cosines per head": (GREEN, "-.", 1.1),
    "cosines": (PINK, "-.", 1.1),
    "permuted: trees": (LIGHT_GREY, "-", 1.1),
    "permuted: dyadic trees": (LIGHT_GREY, "--", 1.1),
}
_SYMBOLS = {"-": "circle", "--": "diamond-open", ":": "x", "-.": "square"}
_SPARSITY_READING = (
    "The first figure shows the error that is left when only the largest coefficients are kept: the lower a curve, "
    "the fewer numbers describe the network. The organised trees are worth their work where they stay below the "
    "controls, which are other bases and shuffled axes."
)
_PERMUTED_READING = " Trees fitted to permuted values show how much of the gain is fitted noise."
_REGULARITY_READING = (
    " In the second figure a steeper line means a smoother network: its slope minus ½ is the exponent α."
)


def _sparsity_panels(comparison: SparsityControls) -> tuple[Panel, Panel | None]:
    """Return the best-n-term errors of all bases, and their regularity where a basis has one."""
    errors: list[Series] = []
    fits: list[Series] = []
    for profile in comparison.profiles:
        colour, dash, width = _BASES.get(profile.name, (GREY, "-", 1.4))
        curve = profile.sparsity
        kept = curve.errors > 0  # the axis is logarithmic
        share = 100 * curve.counts[kept] / curve.counts[-1]
        hover = "{x:.3g}% of the coefficients: error {y:.3g}"
        errors.append(Line(share, curve.errors[kept], colour, profile.name, width + 0.4, dash, hover=hover))
        if (fit := profile.holder) is not None and len(fit.support):
            ends = np.array([fit.support.min(), fit.support.max()])
            label = f"{profile.name}: α {fit.exponent:.2f} ± {fit.error:.2f}".replace("-", "−")
            hover = "support 2^{x:.1f}: {y:.2f}"
            style = {"symbol": _SYMBOLS[dash], "size": 6, "group": profile.name}
            fits.append(Points(fit.support, fit.log_rms, colour, label, hover=hover, **style))  # type: ignore[arg-type]
            fits.append(Line(ends, fit.line(ends), colour, width=width, dash=dash, group=profile.name))
    share_axis = Axis("share of coefficients kept, %", log=True)
    error_axis = Axis("relative l2 error", log=True, range=(3e-3, 1.3))
    left = Panel("best n terms", errors, share_axis, error_axis, note="lower is sparser")
    axes = Axis("log₂ of the support |R|"), Axis("log₂ rms coefficient")
    return left, Panel("regularity", fits, *axes, note="slope − ½ is the exponent α") if fits else None


def sparsity_figure(comparison: SparsityControls) -> Drawing:
    """Draw the best-n-term error of each basis, and how its coefficients shrink with the size of their supports."""
    panels = [panel or Panel("", (), empty=True) for panel in _sparsity_panels(comparison)]
    return drawn(Figure(panels, 2, size=(PAGE, 4.2), legend="under"))


def sparsity_section(comparison: SparsityControls, *, id: str = "sparsity") -> Section:
    """Return the best-n-term errors and the regularity of every basis.

    >>> from attngeo.organization import organize, planted
    >>> section = sparsity_section(organize(planted((32, 32, 12), seed=0)[0]).expand().compare(permuted=False))
    >>> [trace["name"] for trace in section.figures[0].plotly["data"]]
    ['trees', 'shuffled axes', 'dyadic trees', 'cosines per head', 'cosines']
    >>> "permuted" in section.reading
    False
    """
    errors, regularity = _sparsity_panels(comparison)
    curves = (
        {"basis": profile.name, "coefficients kept": int(count), "relative error": float(error)}
        for profile in comparison.profiles
        for count, error in zip(profile.sparsity.counts, profile.sparsity.errors, strict=True)
    )
    label = "Relative error against the share of coefficients kept, for the trees and each control."
    figures = [PageFigure(f"{id}-errors", label, Figure([errors], height=400), columns(curves))]
    if regularity is not None:
        rows = (
            {"basis": profile.name, "log2 support": float(support), "log2 rms": float(size)}
            | {"exponent": fit.exponent, "error": fit.error}
            for profile in comparison.profiles
            if (fit := profile.holder) is not None
            for support, size in zip(fit.support, fit.log_rms, strict=True)
        )
        label = "Size of the Haar coefficients against their support, with fitted lines."
        figures.append(PageFigure(f"{id}-regularity", label, Figure([regularity], height=400), columns(rows)))
    gains = f"The l1/l2 of the trees is {comparison.gain():.1%} below that of dyadic trees"
    permuted = "permuted: trees" in comparison
    if permuted:
        gains += f", {comparison.gain(permuted=True):.1%} for permuted values"
    reading = _SPARSITY_READING + _PERMUTED_READING * permuted + _REGULARITY_READING * (regularity is not None)
    return Section(id, "Sparsity", reading, tuple(figures), (f"{gains}.",))


# What the softmax changes

_INVARIANCE_READING = (
    "Each row compares the geometry of the logits with that of their softmax; the open circle is the control, in "
    "which the values of each row are permuted. A blue dot is better than the control, judged by the 95% interval of "
    "the difference, an orange one is not; for Procrustes distances smaller is better, for all others larger. In the "
    "second figure, heads above the dashed line have a residual that is smoother than their logits; the dotted line "
    "is at twice the exponent of the logits."
)


def _contrast_panel(report: InvarianceReport) -> Panel:
    """Return each measure of agreement between logits and softmax, joined to its control."""
    shown = [one for one in report.contrasts if np.isfinite(one.value)]
    rows = {float(at): one.figure for at, one in enumerate(shown)}
    lines = [x for one in shown for x in (one.control, one.value, None)]
    series: list[Series] = [Line(lines, np.repeat(np.arange(len(shown)), 3), LIGHT_GREY)]
    kinds = [
        ("control: rows permuted", GREY, "circle-open", [one.control for one in shown], list(range(len(shown)))),
        *(
            (label, colour, "circle", [shown[at].value for at in own], own)
            for label, colour, better in (("better than the control", BLUE, True), ("not better", ORANGE, False))
            if (own := [at for at, one in enumerate(shown) if one.beats_control == better])
        ),
    ]
    for label, colour, symbol, values, own in kinds:
        intervals = [
            f"better by {one.low:.3f} to {one.high:.3f}" if one.has_interval else "too few for an interval"
            for one in (shown[at] for at in own)
        ]
        hover = "{x:.3f}; {detail}"
        series.append(Points(values, own, colour, label, symbol, 10, hover=hover, details=intervals))
    y = Axis(ticks=rows, range=(-0.5, max(1, len(rows)) - 0.5), reverse=True)
    return Panel(f"logits and their {report.comparison}", series, Axis("value"), y)


def _exponent_panel(report: InvarianceReport) -> Panel:
    """Return the exponent of the residual against that of the logits, for each head and its control."""
    series: list[Series] = []
    every: list[float] = []
    for heads, label, colour, symbol in (
        (report.heads_control, "control", GREY, "circle-open"),
        (report.heads, "heads", BLUE, "circle"),
    ):
        x, y = ([getattr(head, side).exponent for head in heads] for side in ("exponent", "residual"))
        every += x
        names, hover = [head.head for head in heads], "{name}: logits {x:.2f}, residual {y:.2f}"
        series.append(Points(x, y, colour, label, symbol, 7, 0.8, hover=hover, names=names))
    ends = np.array([np.nanmin([*every, np.inf]), np.nanmax([*every, -np.inf])])
    for factor, dash, label in ((1, "--", "equal exponents"), (2, ":", "twice the exponent")):
        series.append(Line(ends, factor * ends, GREY, label, 1.3, dash))
    return Panel("single heads", series, Axis("exponent α of the logits"), Axis("exponent α of the residual"))


def invariance_figure(report: InvarianceReport) -> Drawing:
    """Draw each measure of agreement between logits and softmax with its control, and the exponents of single heads."""
    panels = [_contrast_panel(report), _exponent_panel(report)]
    return drawn(Figure(panels, 2, (3, 2), size=(PAGE, 3.9), legend="under"))


def invariance_section(report: InvarianceReport, *, id: str = "invariance") -> Section:
    """Return the figures of the network with their controls, and the exponents of single heads.

    >>> from attngeo.organization import planted
    >>> section = invariance_section(attngeo.softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50))
    >>> [figure.id for figure in section.figures]
    ['invariance-network', 'invariance-heads']
    """
    network = _contrast_panel(report)
    ticks = {
        at: name.replace(": ", ":\n", 1) for at, name in (network.y.ticks or {}).items()
    }  # narrow enough for a phone
    contrasts = (
        {
            "figure": one.figure,
            "value": float(one.value),
            "control": float(one.control),
            "better by, low": float(one.low),
            "better by, high": float(one.high),
            "better than the control": one.beats_control,
        }
        for one in report.contrasts
        if np.isfinite(one.value)
    )
    label = f"Agreement of the logits with their {report.comparison}, each figure beside its control."
    chart = Figure([replace(network, y=replace(network.y, ticks=ticks))], height=60 + 36 * len(ticks))
    figures = [PageFigure(f"{id}-network", label, chart, columns(contrasts))]
    if report.heads:
        exponents = (
            {"head": one.head, "control": control, "logits": one.exponent.exponent, "residual": one.residual.exponent}
            for control, heads in ((False, report.heads), (True, report.heads_control))
            for one in heads
        )
        label = f"Exponents of the residual against those of the logits, for {len(report.heads)} heads and the control."
        panel = Figure([_exponent_panel(report)], height=380)
        figures.append(PageFigure(f"{id}-heads", label, panel, columns(exponents)))
    return Section(id, "What the softmax changes", _INVARIANCE_READING, tuple(figures))
