"""The form of single heads: row norms against column norms, and the spectra of the symmetric and the skew part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import GREEN, PINK, stack_colour
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    Panel,
    Trace,
    axis,
    columns,
    figure,
    legend_entry,
    rounded,
    stack_name,
)

if TYPE_CHECKING:
    from attngeo.weights.scoring.form import HeadForm

READING = (
    "The heads shown have the highest, the median and the lowest symmetry of their stack. In the first figure each "
    "dot is one hidden dimension with the norm of its row (query side) and of its column (key side); a symmetric "
    "form has all dots on the diagonal, and directionality compares how far dots lie beyond the two dashed "
    "thresholds. The second figure shows the eigenvalues of the symmetric and of the skew part, largest first: a "
    "part that holds little of the form lies near 0."
)


def head_forms_section(forms: Sequence[HeadForm], *, id: str = "forms") -> Section:
    """Return two figures per stack, the norms of its forms and their spectra, with a panel per head.

    forms: as `head_forms` returns them

    >>> from attngeo.weights.scoring.form import head_forms
    >>> section = head_forms_section(head_forms(attngeo.bundled("encoder"), [("encoder", 2, 1)]))
    >>> [figure.id for figure in section.figures]
    ['forms-norms', 'forms-spectra']
    """
    stacks: dict[tuple[str, str], list[HeadForm]] = {}
    for form in forms:
        stacks.setdefault((form.model, form.stack), []).append(form)
    figures: list[PageFigure] = []
    for number, own in enumerate(stacks.values(), 1):
        figures += _stack_figures(own, id, "" if number == 1 else f"-{number}", several=len(stacks) > 1)
    return Section(id, "The form of single heads", READING, tuple(figures))


def _stack_figures(forms: Sequence[HeadForm], id: str, ending: str, several: bool) -> list[PageFigure]:
    """Return both figures of one stack; their titles name it where there are several."""
    norms = figure([_norm_panel(form, several) for form in forms], height=300, beside=3)
    norms["data"] += [
        legend_entry("hidden dimension", "dots", mode="markers", marker={"color": NULL_GREY, "size": 5}),
        legend_entry("row = column", "diagonal", mode="lines", line={"color": NULL_GREY, "width": 1}),
        legend_entry("threshold, mean + 2 std", "threshold", mode="lines", line={"color": NULL_GREY, "dash": "dash"}),
    ]
    spectra = figure(
        [_spectrum_panel(form, number, several) for number, form in enumerate(forms)], height=300, beside=3
    )
    heads = f"{', '.join(form.label for form in forms)} of {short_name(forms[0].model)}, {forms[0].stack}"
    return [
        PageFigure(f"{id}-norms{ending}", f"Row norms against column norms of {heads}.", norms, _norms(forms)),
        PageFigure(f"{id}-spectra{ending}", f"Spectra of both parts of {heads}.", spectra, _spectra(forms)),
    ]


def _title(form: HeadForm, score: str, several: bool) -> str:
    """Return head and score, and above them the stack where there are several."""
    value = f"{round(getattr(form, score), 2) + 0.0:.2f}".replace("-", "−")  # no −0.00
    title = f"{form.label}: {score} {value}"
    return f"{stack_name(form.model, form.stack)}<br>{title}" if several else title


def _norm_panel(form: HeadForm, several: bool) -> Panel:
    top = 1.05 * float(max(form.row_norms.max(), form.column_norms.max()))
    row, column = (min(limit, top) for limit in (form.row_threshold, form.column_threshold))
    hidden = {"type": "scatter", "hoverinfo": "skip", "showlegend": False, "mode": "lines"}
    traces: list[Trace] = [
        hidden
        | {
            "x": rounded([0, top]),
            "y": rounded([0, top]),
            "line": {"color": NULL_GREY, "width": 1},
            "legendgroup": "diagonal",
        },
        hidden
        | {
            "x": [*rounded([column, column]), None, *rounded([0, top])],
            "y": [*rounded([0, top]), None, *rounded([row, row])],
            "line": {"color": NULL_GREY, "width": 1.3, "dash": "dash"},
            "legendgroup": "threshold",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": rounded(form.column_norms),
            "y": rounded(form.row_norms),
            "text": list(range(len(form.row_norms))),
            "hovertemplate": "dimension %{text}: row %{y:.3g}, column %{x:.3g}<extra></extra>",
            "marker": {"color": stack_colour(form.stack), "size": 4, "opacity": 0.65},
            "legendgroup": "dots",
            "showlegend": False,
        },
    ]
    return Panel(
        _title(form, "directionality", several),
        traces,
        axis("column norm", range=rounded([0, top])),
        axis("row norm", range=rounded([0, top])),
    )


def _spectrum_panel(form: HeadForm, number: int, several: bool) -> Panel:
    traces: list[Trace] = []
    for name, values, colour, symbol in (
        ("symmetric part", form.symmetric, GREEN, "circle"),
        ("skew part, divided by i", form.skew, PINK, "diamond"),
    ):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(range(1, len(values) + 1)),
                "y": rounded(values / form.norm if form.norm > 0 else values),
                "line": {"color": colour, "width": 1.5},
                "marker": {"color": colour, "size": 4, "symbol": symbol},
                "hovertemplate": "%{x}: %{y:.3f}",
                "name": name,
                "legendgroup": name,
                "showlegend": number == 0,
            }
        )
    return Panel(
        _title(form, "symmetry", several),
        traces,
        axis("number of the eigenvalue"),
        axis("eigenvalue / ‖M‖", zeroline=True),
    )


def _norms(forms: Sequence[HeadForm]) -> dict[str, list[object]]:
    rows = (
        {
            "model": form.model,
            "stack": form.stack,
            "head": form.label,
            "dimension": at,
            "row norm": float(row),
            "column norm": float(column),
        }
        for form in forms
        for at, (row, column) in enumerate(zip(form.row_norms, form.column_norms, strict=True))
    )
    return columns(rows)


def _spectra(forms: Sequence[HeadForm]) -> dict[str, list[object]]:
    rows = (
        {
            "model": form.model,
            "stack": form.stack,
            "head": form.label,
            "number": at,
            "symmetric": float(one),
            "skew": float(other),
        }
        for form in forms
        for at, (one, other) in enumerate(zip(form.symmetric, form.skew, strict=True), 1)
    )
    return columns(rows)
