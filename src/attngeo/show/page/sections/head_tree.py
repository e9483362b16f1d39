"""The tree of the heads beside their affinity in the order of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attngeo.show.organization_figures import layer_of
from attngeo.show.organization_text import axis_labels
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    SEQUENTIAL,
    Panel,
    Trace,
    axis,
    colour_bar,
    escaped,
    figure,
    rounded,
    rounded_number,
)

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization
    from attngeo.organization.tree import Tree

READING = (
    "The tree on the left joins heads that treat this input alike, from all heads at the root to single heads, the "
    "dots, which are coloured by layer. The map shows the affinity of each pair of heads in the order of the tree: 1 "
    "means that two heads give the same organised matrix, and bright blocks on the diagonal are groups of similar "
    "heads. Values above the upper end of the colour bar have its colour. A click on a dot selects that head."
)
TREE_SHARE = 0.26  # of the width of the figure


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
    names = [escaped(labels[head]) for head in order]
    reordered = affinity[np.ix_(order, order)]
    off_diagonal = reordered[~np.eye(len(order), dtype=bool)]
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": [[round(value, 4) for value in row] for row in reordered.tolist()],
        "hovertemplate": "%{y} and %{x}: %{z:.3f}<extra></extra>",
        "colorscale": SEQUENTIAL,
        "zmin": rounded_number(float(off_diagonal.min(initial=0.0))),
        "zmax": rounded_number(float(np.quantile(off_diagonal, 0.995))) if off_diagonal.size else 1.0,
        "colorbar": colour_bar("affinity"),
    }
    categories = {"type": "category", "categoryorder": "array", "categoryarray": names, "tickfont": {"size": 9}}
    levels = axis("", domain=[0, TREE_SHARE], range=[-0.3, tree.depth - 0.7])
    levels |= {"tickvals": [0], "ticktext": ["root"], "showgrid": False}
    panel = Panel(
        "head tree and affinity",
        [*_tree_traces(tree, names, [layer_of(labels[head], at) for at, head in enumerate(order)])],
        levels,
        axis("", **categories, range=[len(names) - 0.5, -0.5], showgrid=False),
    )
    across = axis("heads in the same order", **categories, domain=[TREE_SHARE + 0.02, 1], anchor="y", showgrid=False)
    across["showticklabels"] = False
    description = figure([panel], height=min(620, max(280, 8 * len(names))), legend=False, xaxis2=across)
    description["data"].append(heat | {"xaxis": "x2", "yaxis": "y"})
    table = {"head": [labels[head] for head in order]} | {
        labels[head]: rounded(column) for head, column in zip(order, reordered.T, strict=True)
    }
    label = f"Tree of {len(names)} heads, and the affinity of each pair of them in the order of the tree."
    return Section(id, "Heads that act alike", READING, (PageFigure(f"{id}-1", label, description, table),))


def _tree_traces(tree: Tree, names: Sequence[str], layers: Sequence[int]) -> list[Trace]:
    """Return the branches of a tree as one line, and its leaves as dots coloured by layer.

    A folder stands beside its middle member, so that tree and map have the same vertical axis.
    """
    levels = tree.levels[:, tree.order]  # [depth, n]
    x: list[int | None] = []
    y: list[str | None] = []
    for level in range(tree.depth - 1):
        middle = {int(folder): _middle(levels[level], int(folder)) for folder in np.unique(levels[level])}
        for folder in np.unique(levels[level + 1]):
            child = _middle(levels[level + 1], int(folder))
            parent = middle[int(levels[level][child])]
            x += [level, level, level + 1, None]
            y += [names[parent], names[child], names[child], None]
    last = tree.depth - 1
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": NULL_GREY, "width": 1.2},
        "hoverinfo": "skip",
    }
    leaves = {
        "type": "scatter",
        "mode": "markers",
        "x": [last] * len(names),
        "y": list(names),
        "customdata": list(names),
        "text": [str(layer) for layer in layers],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "size": 6,
            "color": list(layers),
            "colorscale": SEQUENTIAL,
            "line": {"width": 0.5, "color": "#ffffff"},
        },
    }
    return [line, leaves]


def _middle(folders: np.ndarray[tuple[int], np.dtype[np.int64]], folder: int) -> int:
    """Return the place of the middle member of a folder; its members lie side by side."""
    members = np.flatnonzero(folders == folder)
    return int(members[(len(members) - 1) // 2])
