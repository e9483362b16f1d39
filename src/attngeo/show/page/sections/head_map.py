"""The diffusion map of the heads of an organised network, coloured by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats
from attngeo.show.organization_figures import coordinate_pairs, head_coordinates, layer_of
from attngeo.show.organization_text import axis_labels, compact_labels
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    SEQUENTIAL,
    Panel,
    axis,
    columns,
    escaped,
    figure,
    layer_bar,
    rounded,
)

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization

READING = (
    "Each dot is one head, coloured by its layer; heads that treat this input alike lie close together. The first "
    "figure shows the two leading coordinates, which a few unusual heads may dominate. The second shows the two "
    "coordinates that spread most heads apart, without the outliers. A click selects a head."
)


def head_map_section(organization: Organization, *, id: str = "head-map") -> Section:
    """Return two views of the diffusion map of the heads.

    >>> from attngeo.organization import organize, planted
    >>> section = head_map_section(organize(planted((16, 12, 8), seed=0)[0]))
    >>> [len(figure.plotly["data"][0]["x"]) for figure in section.figures][0]
    8
    """
    labels = axis_labels(organization, 2)
    layers = [layer_of(label, index) for index, label in enumerate(labels)]
    points = head_coordinates(organization)
    figures, notes = [], []
    for number, ((first, second), inside) in enumerate(coordinate_pairs(points), 1):
        shown = np.flatnonzero(inside).tolist()
        figures.append(_view(points, shown, (first, second), labels, layers, f"{id}-{number}"))
        if not inside.all():
            outside = compact_labels(labels[head] for head in np.flatnonzero(~inside))
            notes.append(f"Outside of the second figure: {outside}.")
    return Section(id, "Map of the heads", READING, tuple(figures), tuple(notes))


def _view(
    points: Floats, shown: list[int], pair: tuple[int, int], labels: tuple[str, ...], layers: list[int], id: str
) -> PageFigure:
    first, second = pair
    names = [escaped(labels[head]) for head in shown]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(points[shown, first]),
        "y": rounded(points[shown, second]),
        "customdata": names,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "size": 9,
            "color": [layers[head] for head in shown],
            "colorscale": SEQUENTIAL,
            "cmin": min(layers),
            "cmax": max(*layers, min(layers) + 1),
            "colorbar": layer_bar(max(layers) - min(layers)),
            "line": {"width": 0.5, "color": "#ffffff"},
        },
    }
    title = f"coordinates {first + 1} and {second + 1}, {len(shown)} of {len(labels)} heads"
    panel = Panel(
        title,
        [trace],
        axis(f"diffusion coordinate {first + 1}"),
        axis(f"diffusion coordinate {second + 1}"),
    )
    rows = (
        {
            "head": labels[head],
            "layer": layers[head],
            f"coordinate {first + 1}": float(points[head, first]),
            f"coordinate {second + 1}": float(points[head, second]),
        }
        for head in shown
    )
    label = f"Diffusion map of {len(shown)} heads, {title.partition(',')[0]}, coloured by layer."
    return PageFigure(id, label, figure([panel], height=400, legend=False), columns(rows))
