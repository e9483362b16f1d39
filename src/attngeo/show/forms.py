"""`head_forms_section`: the form of single heads, as norms of rows and columns and as spectra of its two parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.charts import GREEN, GREY, PINK, Axis, Figure, Level, Line, Panel, Points, Series, stack_colour
from attngeo.io.names import short_name
from attngeo.show.page.section import PageFigure, Section, columns, stack_name

if TYPE_CHECKING:
    from attngeo.weights.scoring.form import HeadForm

_READING = (
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
    return Section(id, "The form of single heads", _READING, tuple(figures))


def _stack_figures(forms: Sequence[HeadForm], id: str, ending: str, several: bool) -> list[PageFigure]:
    """Return both figures of one stack; their titles name it where there are several."""
    common = [{"model": form.model, "stack": form.stack, "head": form.label} for form in forms]
    norms = (
        own | {"dimension": at, "row norm": float(row), "column norm": float(column)}
        for own, form in zip(common, forms, strict=True)
        for at, (row, column) in enumerate(zip(form.row_norms, form.column_norms, strict=True))
    )
    spectra = (
        own | {"number": at, "symmetric": float(one), "skew": float(other)}
        for own, form in zip(common, forms, strict=True)
        for at, (one, other) in enumerate(zip(form.symmetric, form.skew, strict=True), 1)
    )
    heads = f"{', '.join(form.label for form in forms)} of {short_name(forms[0].model)}, {forms[0].stack}"
    figures = []
    for name, label, function, rows in (
        ("norms", f"Row norms against column norms of {heads}.", _norm_panel, norms),
        ("spectra", f"Spectra of both parts of {heads}.", _spectrum_panel, spectra),
    ):
        chart = Figure([function(form, several) for form in forms], columns=3, height=300)
        figures.append(PageFigure(f"{id}-{name}{ending}", label, chart, columns(rows)))
    return figures


def _title(form: HeadForm, score: str, several: bool) -> str:
    """Return head and score, and above them the stack where there are several."""
    value = f"{round(getattr(form, score), 2) + 0.0:.2f}".replace("-", "−")  # no −0.00
    title = f"{form.label}: {score} {value}"
    return f"{stack_name(form.model, form.stack)}\n{title}" if several else title


def _norm_panel(form: HeadForm, several: bool) -> Panel:
    top = 1.05 * float(max(form.row_norms.max(), form.column_norms.max()))
    row, column = (min(limit, top) for limit in (form.row_threshold, form.column_threshold))
    series: list[Series] = [
        Line((0, top), (0, top), GREY, "row = column", width=1),
        Line((column, column, None, 0, top), (0, top, None, row, row), GREY, "threshold, mean + 2 std", 1.3, "--"),
        Points(
            form.column_norms,
            form.row_norms,
            stack_colour(form.stack),
            "hidden dimension",
            size=4,
            opacity=0.65,
            hover="dimension {detail}: row {y:.3g}, column {x:.3g}",
            details=[str(at) for at in range(len(form.row_norms))],
        ),
    ]
    x, y = Axis("column norm", range=(0, top)), Axis("row norm", range=(0, top))
    return Panel(_title(form, "directionality", several), series, x, y)


def _spectrum_panel(form: HeadForm, several: bool) -> Panel:
    series: list[Series] = [Level(0, width=1, dash="-")]
    for name, values, colour, symbol in (
        ("symmetric part", form.symmetric, GREEN, "circle"),
        ("skew part, divided by i", form.skew, PINK, "diamond"),
    ):
        shares = values / form.norm if form.norm > 0 else values
        style = {"symbol": symbol, "hover": "{x}: {y:.3f}"}
        series.append(Line(list(range(1, len(values) + 1)), shares, colour, name, 1.5, size=4, **style))  # type: ignore[arg-type]
    axes = (Axis("number of the eigenvalue"), Axis("eigenvalue / ‖M‖"))
    return Panel(_title(form, "symmetry", several), series, *axes)
