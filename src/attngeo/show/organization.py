"""Organised networks as text, as figures, and as sections of a page.

organization_summary                what `attngeo organize` prints; tree_text: a single tree
tensor_figure, slices_figure        heads as matrices, and the same before and after organising
paraproduct_figure                  a paraproduct and its parts
heads_figure, head_map_section      the diffusion map of the heads
trees_figure, tree_figure           trees from their root to their elements
head_tree_section                   the tree of the heads beside their affinity
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import AnyFloats, Floats
from attngeo.charts import (
    COLUMN,
    GREY,
    PAGE,
    WHITE,
    Axis,
    Bar,
    Figure,
    Heatmap,
    Line,
    Panel,
    Points,
    Text,
    token_label,
)
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from numpy.typing import NDArray

    from attngeo.organization.expansion import Expansion, SparsityControls
    from attngeo.organization.organize import Organization
    from attngeo.organization.paraproduct import Paraproduct
    from attngeo.organization.tensor import NetworkTensor
    from attngeo.organization.tree import Tree

AXES = ("queries", "keys", "heads")


def axis_labels(organization: Organization, axis: int) -> tuple[str, ...]:
    """Return the names of the elements of an axis, or their indices where a plain array has no names."""
    names = getattr(organization.tensor, AXES[axis], None)
    return tuple(names) if names else tuple(map(str, range(organization.trees[axis].size)))


def compact_labels(labels: Iterable[str]) -> str:
    """Return labels sorted and joined, the heads of a layer under one prefix.

    >>> compact_labels(["L2H3", "L0H4", "L0H1"])
    'L0H1,4 L2H3'
    """
    heads: dict[str, list[str]] = {}  # prefix of a layer → its heads
    for label in labels:
        match = re.fullmatch(r"(L\d+H)(\d+)", label)
        heads.setdefault(match[1] if match else label, []).append(match[2] if match else "")
    order = sorted(heads, key=lambda prefix: [int(number) for number in re.findall(r"\d+", prefix)] or [-1])
    return " ".join(prefix + ",".join(sorted(heads[prefix], key=lambda n: int(n or 0))) for prefix in order)


def _layers(labels: Sequence[str]) -> list[int]:
    """Return the layer that the label of each head names; the place of a head whose label names none."""
    found = [re.fullmatch(r"L(\d+)H\d+", label) for label in labels]
    return [int(match[1]) if match else at for at, match in enumerate(found)]


# ---- text

_WIDTH = 80  # characters per line, as in most terminals
_FOLDERS_SHOWN = 12  # folders listed before the rest is only counted
_COLUMN_LEGEND = (
    "l1/l2: l1 norm of the coefficients over their l2 norm, smaller is sparser",
    "90%, 99%, 99.9%: share of the coefficients that holds this much of the energy",
    "exponent: mixed-Hölder exponent ± standard error, larger is smoother (cosines have none)",
)
# First word of a basis → its meaning; printed for the bases that were compared.
_BASIS_LEGEND = {
    "trees": "Haar basis of the trees found here; the other rows are controls",
    "shuffled": "the same trees after shuffling each axis",
    "dyadic": "trees that halve the given order",
    "cosines": "cosine transforms of the whole array and, for a tensor, of each head",
    "permuted": "all values permuted, trees fitted again",
}


def organization_summary(organization: Organization, expansion: Expansion, comparison: SparsityControls) -> str:
    """Return the summary that `attngeo organize` prints, one section per aspect, each with what its numbers mean."""
    shape = " × ".join(map(str, organization.values.shape))
    name, stage = (getattr(organization.tensor, what, default) for what, default in (("name", ""), ("stage", "values")))
    axes = AXES[: len(organization.trees)]
    sections = [f"{name + ': ' if name else ''}{stage}, {shape} ({' × '.join(axes)})", _history(organization, axes)]
    labels = axis_labels(organization, 2) if len(axes) == 3 else ()
    if labels:
        tree = tree_text(organization.trees[2], labels)
        sections.append(f"tree of the heads, a few of its levels (number of heads in each folder)\n{tree}")
        sections.append(_closest_heads(organization, labels))
    bases = dict.fromkeys(re.split(r"[ :]", profile.name)[0] for profile in comparison.profiles)
    legend = [*_COLUMN_LEGEND, *(f"{basis}: {_BASIS_LEGEND[basis]}" for basis in bases if basis in _BASIS_LEGEND)]
    sections += [_entropies(expansion, labels), f"sparsity, compared with controls\n{comparison}", "\n".join(legend)]
    return "\n\n".join(sections) + "\n"


def _history(organization: Organization, axes: Sequence[str]) -> str:
    lines = ["l1: total l1 norm of the Haar coefficients; per axis: similarity to the previous tree (1: identical)"]
    lines.append(f"{'':16}{'l1':>12}" + "".join(f"{axis:>10}" for axis in axes))
    count = 0
    for step in organization.history:
        count += step.stage == "iteration"
        name = f"iteration {count}" if step.stage == "iteration" else step.stage
        similarities = "".join(f"{'' if value is None else f'{value:.3f}':>10}" for value in step.likeness)
        lines.append(f"{name:16}{step.l1:12.6g}{similarities}".rstrip())
    if organization.settled:
        lines.append("converged: the last iteration changed no tree")
    else:
        lines.append(f"ended after {count} iteration{'s' * (count != 1)}; the last one still changed a tree")
    return "\n".join(lines)


def _closest_heads(organization: Organization, labels: Sequence[str]) -> str:
    affinity = organization.affinities[2]  # [heads, heads]
    ranked = []
    for inside in organization.trees[2].smallest_folders():
        pairs = [affinity[a, b] for a in inside for b in inside if a < b]
        ranked.append((sum(pairs) / len(pairs), inside))
    ranked.sort(key=lambda pair: -pair[0])
    lines = ["heads that are joined first, with their mean affinity (1: identical)"]
    shown = ranked[:_FOLDERS_SHOWN]
    lines += [f"  {mean:.3f}  {compact_labels(labels[element] for element in inside)}" for mean, inside in shown]
    if len(ranked) > len(shown):
        lines.append(f"  … and {len(ranked) - len(shown)} more folders, down to {ranked[-1][0]:.3f}")
    return "\n".join(lines)


def _entropies(expansion: Expansion, labels: Sequence[str]) -> str:
    l1, normalised = expansion.entropy("network"), expansion.entropy("network", normalised=True)
    lines = [f"entropy of the network: l1 {l1:.6g}, l1/l2 {normalised:.4g}"]
    if labels:
        heads = np.atleast_1d(expansion.entropy("head", normalised=True))  # [heads]
        ranked = sorted(range(len(labels)), key=lambda head: heads[head])
        count = min(6, (len(ranked) + 1) // 2)
        for title, some in (("least", ranked[:count]), ("most", ranked[: -count - 1 : -1])):
            lines.append(f"  {title:5}  " + "  ".join(f"{labels[head]} {heads[head]:.3g}" for head in some))
        lines[0] += "; l1/l2 of single heads:"
    return "\n".join(lines)


def tree_text(tree: Tree, labels: Sequence[str]) -> str:
    """Return a drawing of the tree at some of its levels, each folder with its size, the smallest with their elements.

    The levels are those where the number of folders first reaches 2, 4, 8 and 16.

    >>> print(tree_text(Tree([[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 3]]), ("L0H0", "L0H1", "L1H0", "L1H1")))
    4
    ├─ 3  L0H0 L1H0,1
    └─ 1  L0H1
    """
    wanted = [count for count in (2, 4, 8, 16) if count <= tree.size / 2]
    first = [next(level for level, width in enumerate(tree.widths) if width >= least) for least in wanted]
    levels = list(dict.fromkeys(level for level in first if tree.widths[level] < tree.size))
    return "\n".join([str(tree.size), *_branches(tree, tree.order.tolist(), levels, labels, "")])


def _branches(tree: Tree, members: list[int], levels: list[int], labels: Sequence[str], indent: str) -> list[str]:
    """Return the lines of the folders that the elements `members` fall into at `levels`, one branch per folder."""
    folders: dict[int, list[int]] = {}
    while levels and len(folders) < 2:  # skip levels that do not split this folder
        folders = {}
        for element in members:
            folders.setdefault(int(tree.levels[levels[0], element]), []).append(element)
        levels = levels[1:]
    lines = []
    for number, inside in enumerate(folders.values()):
        last = number == len(folders) - 1
        deeper = indent + ("   " if last else "│  ")
        below = _branches(tree, inside, levels, labels, deeper)
        branch = f"{indent}{'└─' if last else '├─'} {len(inside)}"
        if below:
            lines += [branch, *below]
        else:
            names = wrap(compact_labels(labels[element] for element in inside), max(30, _WIDTH - len(deeper) - 4))
            lines += [f"{branch}  {names[0]}", *(f"{deeper}   {more}" for more in names[1:])]
    return lines if len(folders) > 1 else []


# ---- matrices

_MOST_LABELS = 18  # an axis with more elements is not labelled one by one


def tensor_figure(tensor: NetworkTensor) -> Drawing:
    """Draw up to eight heads as matrices, evenly spaced from first to last; masked entries stay white."""
    count = min(8, tensor.shape[2])
    columns = min(4, count)
    panels = []
    for at, head in enumerate(np.rint(np.linspace(0, tensor.shape[2] - 1, count)).astype(int)):
        matrix = tensor.values[:, :, head]  # [queries, keys]
        if tensor.mask is not None:
            matrix = np.where(tensor.mask if tensor.mask.ndim == 2 else tensor.mask[:, :, head], matrix, np.nan)
        rows = _elements(tensor.queries, "queries" if at % columns == 0 else "", down=True)
        across = _elements(tensor.keys, "keys" if at + columns >= count else "")
        heat = Heatmap(matrix, _limits(matrix), bar=Bar(below=True))
        panels.append(Panel(tensor.heads[head], [heat], across, rows, tensor.stage if at == 0 else ""))
    size = (COLUMN if columns < 3 else PAGE, 2.1 * -(-count // columns) + 0.3)
    return drawn(Figure(panels, columns, size=size))


def slices_figure(organization: Organization) -> Drawing:
    """Draw single heads as matrices, in the given order (above) and in the order of the trees (below).

    One head is taken from each of the four largest folders at the first level that has at least four; a matrix is drawn
    by itself.
    """
    is_tensor = organization.values.ndim == 3
    heads = _typical_heads(organization.trees[2]) if is_tensor else [0]
    titles = axis_labels(organization, 2) if is_tensor else ("matrix",)
    queries, keys = (axis_labels(organization, axis) for axis in (0, 1))
    panels = []
    for organised in (False, True):
        for at, head in enumerate(heads):
            matrix = organization.values[:, :, head] if is_tensor else organization.values  # [queries, keys]
            rows, across = (tree.order if organised else np.arange(tree.size) for tree in organization.trees[:2])
            bar = Bar(of="column", below=True) if organised else None
            heat = Heatmap(matrix[np.ix_(rows, across)], _limits(matrix), bar=bar)
            x = _elements([keys[i] for i in across], "keys" if organised else "")
            y = _elements([queries[i] for i in rows], "" if at else "queries", down=True)
            note = "organised" if organised else "as given"
            panels.append(Panel("" if organised else titles[head], [heat], x, y, note))
    return drawn(Figure(panels, len(heads), size=(COLUMN if len(heads) < 3 else PAGE, 4.3)))


def paraproduct_figure(product: Paraproduct) -> Drawing:
    """Draw f, A(f), the paraproduct and the residual, rows and columns in the order of their trees."""
    order = np.ix_(product.row_tree.order, product.column_tree.order)
    panels = [
        Panel(
            name,
            [Heatmap(matrix[order], _limits(scale), bar=Bar(below=True))],
            Axis(flat=True),
            Axis(flat=True, reverse=True),
        )
        for name, matrix, scale in (
            ("f", product.matrix, product.matrix),
            (f"{product.name or 'A'}(f)", product.exact, product.exact),
            ("paraproduct", product.approximation, product.exact),
            ("residual", product.residual, product.residual),
        )
    ]
    return drawn(Figure(panels, 4, size=(PAGE, 2.2)))


def _limits(matrix: AnyFloats) -> tuple[float, float]:
    """Return the range of the central 98% of the values, which a few outliers do not widen."""
    low, high = np.nanquantile(matrix, (0.01, 0.99)).tolist()
    return low, high


def _elements(labels: Sequence[str], title: str, down: bool = False) -> Axis:
    """Return an axis that names each element, or only gives their number where there are too many."""
    if len(labels) <= _MOST_LABELS:
        return Axis(title, categories=tuple(map(token_label, labels)), reverse=down)
    return Axis(f"{len(labels)} {title}" if title else "", flat=True, reverse=down)


def _typical_heads(tree: Tree) -> list[int]:
    """Return the first head of each of the four largest folders, in tree order, at the first level that has four."""
    level = next((depth for depth, width in enumerate(tree.widths) if width >= 4), tree.depth - 1)
    row = tree.levels[level][tree.order]  # [heads], folder of each head in tree order
    largest = np.argsort(-np.bincount(row), kind="stable")[:4]
    return [int(tree.order[at]) for at in np.sort([np.flatnonzero(row == folder)[0] for folder in largest])]


# ---- the map of the heads

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
    panels = []
    for at, (panel, dots, outside) in enumerate(_map_views(organization)):
        named = _spread_out(np.asarray(dots.x), np.asarray(dots.y), 16)
        names = Text([dots.x[i] for i in named], [dots.y[i] for i in named], [dots.names[i] for i in named], small=True)
        note = f"outside: {outside}" if 0 < len(outside) < 60 else "" if at else "close: similar"
        dots = replace(dots, bar=Bar("layer", of="row", whole=True) if at else None)
        panels.append(replace(panel, title="" if at else "heads", series=[dots, names], note=note))
    return drawn(Figure(panels, 2, size=(PAGE, 3.5)))


def head_map_section(organization: Organization) -> Section:
    """Return two views of the diffusion map of the heads.

    >>> from attngeo.organization import organize, planted
    >>> section = head_map_section(organize(planted((16, 12, 8), seed=0)[0]))
    >>> [len(figure.chart.panels[0].series[0].x) for figure in section.figures][0]
    8
    """
    figures, notes = [], []
    for number, (panel, dots, outside) in enumerate(_map_views(organization), 1):
        x, y = (axis.title.removeprefix("diffusion ") for axis in (panel.x, panel.y))
        label = f"Diffusion map of {len(dots.x)} heads, {panel.title.partition(',')[0]}, coloured by layer."
        places = zip(dots.names, dots.shade, dots.x, dots.y, strict=True)
        rows = [{"head": head, "layer": layer, x: first, y: second} for head, layer, first, second in places]
        figures.append(PageFigure(f"head-map-{number}", label, Figure([panel], height=400), rows))
        notes += [f"Outside of the second figure: {outside}."] * bool(outside)
    return Section("head-map", "Map of the heads", _MAP_READING, tuple(figures), tuple(notes))


def _map_views(organization: Organization) -> list[tuple[Panel, Points, str]]:
    """Return two views of the diffusion map: each with its dots, and the heads that lie outside of it.

    The first two coordinates, with all heads; and the two with the largest interquartile range, without outliers.
    """
    labels = axis_labels(organization, 2)
    layers = _layers(labels)
    points = organization.embedding(6)  # [heads, ≤ 6]
    points = np.pad(points, ((0, 0), (0, max(0, 3 - points.shape[1]))))  # very few heads have few coordinates
    low, high = np.quantile(points, (0.25, 0.75), axis=0)
    widest = tuple(sorted(np.argsort(low - high, kind="stable")[:2].tolist()))
    widest = (0, 2) if widest == (0, 1) else widest
    inside = _in_the_middle(points[:, widest[0]]) & _in_the_middle(points[:, widest[1]])
    found = []
    for (first, second), kept in (((0, 1), np.full(len(points), True)), (widest, inside)):
        shown = np.flatnonzero(kept).tolist()
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
        x, y = (Axis(f"diffusion coordinate {at + 1}") for at in (first, second))
        found.append((Panel(title, [dots], x, y), dots, compact_labels(np.asarray(labels)[~kept])))
    return found


def _in_the_middle(x: Floats) -> NDArray[np.bool_]:
    """Return which values lie within the central 96%, widened by a quarter of its range at either end."""
    low, high = np.quantile(x, (0.02, 0.98))
    margin = 0.25 * (high - low)
    inside: NDArray[np.bool_] = (x >= low - margin) & (x <= high + margin)
    return inside


def _spread_out(x: Floats, y: Floats, count: int) -> list[int]:
    """Return the indices of at most `count` points far enough apart for their labels not to overlap.

    A label is 0.17 of the range wide and 0.055 of it high. The points are chosen in farthest-point order, beginning
    with the one farthest from the median.
    """
    spread = [np.ptp(x) or 1.0, np.ptp(y) or 1.0]
    points = np.stack([x / spread[0] / 0.17, y / spread[1] / 0.055], 1)  # [points, 2], in labels
    new = int(np.argmax(np.abs(points - np.median(points, 0)).max(1)))
    distance = np.full(len(points), np.inf)  # to the nearest chosen point
    chosen: list[int] = []
    while len(chosen) < count and distance[new] >= 1:
        chosen.append(new)
        distance = np.minimum(distance, np.abs(points - points[new]).max(1))
        new = int(np.argmax(distance))
    return chosen


# ---- trees

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
        named = axis == 2 and re.fullmatch(r"L\d+H\d+", labels[-1])
        position = _layers(labels) if axis == 2 else range(tree.size)
        panels.append(_strips(tree, labels, position, AXES[axis], f"mean {'layer' if named else 'position'}"))
    return drawn(Figure(panels, size=(PAGE, 0.6 + 1.6 * len(panels))))


def tree_figure(tree: Tree) -> Drawing:
    """Draw one tree from its root (top) to its elements, which are labelled by index."""
    panel = _strips(tree, tuple(map(str, range(tree.size))), range(tree.size), "elements", "mean position")
    return drawn(Figure([replace(panel, title="tree")], size=(PAGE, 2.2)))


def _strips(tree: Tree, labels: Sequence[str], position: Sequence[int], title: str, colour: str) -> Panel:
    """Return one strip per level, divided where folders end, each folder in the colour of its mean `position` [n]."""
    levels = tree.levels[:, tree.order]  # [depth, n]
    weights = np.asarray(position, float)[tree.order]
    means = np.stack([(np.bincount(row, weights) / np.bincount(row))[row] for row in levels])
    limits = (min(position), max(*position, min(position) + 1))
    rows, places = np.nonzero(np.diff(levels, axis=1))
    ends = np.stack([rows - 0.5, rows + 0.5, np.full(len(rows), np.nan)], 1).ravel()
    walls = Line(np.repeat(places + 0.5, 3), ends, WHITE, width=1)
    names = tuple(token_label(labels[element]) for element in tree.order)
    x = Axis(categories=names) if tree.size <= 64 else Axis(flat=True)
    y = Axis(range=(-0.5, tree.depth - 0.5), reverse=True, ticks={0: "root", tree.depth - 1: "elements"})
    note = f"{tree.size} {title} in {tree.depth} levels"
    return Panel(title, [Heatmap(means, limits, bar=Bar(colour)), walls], x, y, note)


def head_tree_section(organization: Organization) -> Section:
    """Return one figure with the tree and the affinity of the heads of an organised network.

    >>> from attngeo.organization import organize, planted
    >>> (figure,) = head_tree_section(organize(planted((16, 12, 8), seed=0)[0])).figures
    >>> [trace["type"] for trace in figure.plotly["data"]]
    ['scatter', 'scatter', 'heatmap']
    """
    tree, labels = organization.trees[2], axis_labels(organization, 2)
    order = tree.order.tolist()
    names, count, layers = tuple(labels[head] for head in order), len(order), _layers(labels)
    affinity = organization.affinities[2][np.ix_(order, order)]  # [heads, heads]
    apart = affinity[~np.eye(count, dtype=bool)]
    limits = (float(apart.min(initial=0.0)), float(np.quantile(apart, 0.995)) if apart.size else 1.0)
    heat = Heatmap(np.round(affinity, 4), limits, bar=Bar("affinity"), hover="{y} and {x}: {z:.3f}")
    leaves = Points(
        [tree.depth - 1] * count,
        list(range(count)),
        size=6,
        edge=True,
        hover="{name}",
        names=names,
        shade=[layers[head] for head in order],
        limits=(min(layers), max(layers)),
    )
    down = Axis(categories=names, range=(-0.5, count - 0.5), reverse=True, grid=False)
    levels = Axis(range=(-0.3, tree.depth - 0.7), ticks={0: "root"}, grid=False)
    panels = [
        Panel("head tree and affinity", [Line(*_joined(tree), GREY, width=1.2), leaves], levels, down),
        Panel("", [heat], Axis("heads in the same order", categories=names, flat=True, grid=False), down),
    ]
    chart = Figure(panels, 2, (0.26, 0.7), same="y", height=min(620, max(280, 8 * count)))
    rows = [{"head": name, **dict(zip(names, row, strict=True))} for name, row in zip(names, affinity, strict=True)]
    label = f"Tree of {count} heads, and the affinity of each pair of them in the order of the tree."
    return Section("head-tree", "Heads that act alike", _TREE_READING, (PageFigure("head-tree-1", label, chart, rows),))


def _joined(tree: Tree) -> tuple[list[int | None], list[int | None]]:
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
