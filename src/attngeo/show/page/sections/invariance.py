"""The geometry of a network before and after the softmax, against its control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.show.canvas import BLUE, ORANGE
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    Panel,
    Trace,
    axis,
    columns,
    escaped,
    figure,
    rounded,
    rounded_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attngeo.organization.invariance import Contrast, HeadInvariance, InvarianceReport

READING = (
    "Each row compares the geometry of the logits with that of their softmax; the open circle is the control, in "
    "which the values of each row are permuted. A blue dot is better than the control, judged by the 95% interval of "
    "the difference, an orange one is not; for Procrustes distances smaller is better, for all others larger. In the "
    "second figure, heads above the dashed line have a residual that is smoother than their logits; the dotted line "
    "is at twice the exponent of the logits."
)


def invariance_section(report: InvarianceReport, *, id: str = "invariance") -> Section:
    """Return the figures of the network with their controls, and the exponents of single heads.

    >>> from attngeo.organization import planted
    >>> section = invariance_section(attngeo.softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50))
    >>> [figure.id for figure in section.figures]
    ['invariance-network', 'invariance-heads']
    """
    shown = [one for one in report.contrasts if rounded_number(one.value) is not None]
    rows = [_wrapped(contrast.figure) for contrast in shown]
    y = axis("", type="category", categoryorder="array", categoryarray=rows, autorange="reversed")
    network = Panel(f"logits and their {escaped(report.comparison)}", _contrast_traces(shown), axis("value"), y)
    table = columns(
        {
            "figure": one.figure,
            "value": float(one.value),
            "control": float(one.control),
            "better by, low": float(one.low),
            "better by, high": float(one.high),
            "better than the control": one.beats_control,
        }
        for one in shown
    )
    figures = [
        PageFigure(
            f"{id}-network",
            f"Agreement of the logits with their {report.comparison}, each figure beside its control.",
            figure([network], height=60 + 36 * len(rows)),
            table,
        )
    ]
    if report.heads:
        figures.append(_heads_figure(report, id))
    return Section(id, "What the softmax changes", READING, tuple(figures))


def _wrapped(name: str) -> str:
    """Return the name of a figure in two lines where it names an axis."""
    return escaped(name).replace(": ", ":<br>", 1)


def _contrast_traces(contrasts: Sequence[Contrast]) -> list[Trace]:
    lines = {
        "type": "scatter",
        "mode": "lines",
        "x": [x for one in contrasts for x in (*rounded([one.control, one.value]), None)],
        "y": [y for one in contrasts for y in (_wrapped(one.figure), _wrapped(one.figure), None)],
        "line": {"color": NULL_GREY, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    controls = _dots(contrasts, [one.control for one in contrasts], "control: rows permuted", NULL_GREY, "circle-open")
    traces = [lines, controls]
    for better, colour, name in ((True, BLUE, "better than the control"), (False, ORANGE, "not better")):
        own = [one for one in contrasts if one.beats_control == better]
        if own:
            traces.append(_dots(own, [one.value for one in own], name, colour, "circle"))
    return traces


def _dots(contrasts: Sequence[Contrast], values: Sequence[float], name: str, colour: str, symbol: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(values),
        "y": [_wrapped(one.figure) for one in contrasts],
        "text": [
            f"better by {one.low:.3f} to {one.high:.3f}" if one.has_interval else "too few for an interval"
            for one in contrasts
        ],
        "hovertemplate": "%{x:.3f}; %{text}",
        "marker": {"color": colour, "size": 10, "symbol": symbol, "line": {"width": 1.5}},
        "name": name,
    }


def _heads_figure(report: InvarianceReport, id: str) -> PageFigure:
    traces = [
        _exponents(report.heads_control, "control", NULL_GREY, "circle-open"),
        _exponents(report.heads, "heads", BLUE, "circle"),
    ]
    known = [x for trace in traces for x in trace["x"] if x is not None]
    ends = [min(known, default=0.0), max(known, default=1.0)]
    for factor, dash, name in ((1, "dash", "equal exponents"), (2, "dot", "twice the exponent")):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": ends,
                "y": rounded([factor * end for end in ends]),
                "line": {"color": NULL_GREY, "width": 1.3, "dash": dash},
                "name": name,
                "hoverinfo": "skip",
            }
        )
    panel = Panel("single heads", traces, axis("exponent α of the logits"), axis("exponent α of the residual"))
    rows: list[dict[str, Any]] = [
        {"head": head.head, "control": control, "logits": head.exponent.exponent, "residual": head.residual.exponent}
        for control, heads in ((False, report.heads), (True, report.heads_control))
        for head in heads
    ]
    label = f"Exponents of the residual against those of the logits, for {len(report.heads)} heads and the control."
    return PageFigure(f"{id}-heads", label, figure([panel], height=380), columns(rows))


def _exponents(heads: Sequence[HeadInvariance], name: str, colour: str, symbol: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded([head.exponent.exponent for head in heads]),
        "y": rounded([head.residual.exponent for head in heads]),
        "customdata": [escaped(head.head) for head in heads],
        "hovertemplate": "%{customdata}: logits %{x:.2f}, residual %{y:.2f}",
        "marker": {"color": colour, "size": 7, "symbol": symbol, "opacity": 0.8},
        "name": name,
    }
