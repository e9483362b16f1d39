"""`head_forms_section`: the form of single heads, as norms of rows and columns and as spectra of its two parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.charts import GREEN, GREY, PINK, Axis, Figure, Level, Line, Panel, Points, Series, stack_colour
from attngeo.io.names import short_name
from attngeo.show.page import PageFigure, Section, stack_name

if TYPE_CHECKING:
    from attngeo.weights.scoring.form import HeadForm

_READING = (
    "The heads shown have the highest, the median and the lowest symmetry of their stack. In the first figure each "
    "dot is one hidden dimension with the norm of its row (query side) and of its column (key side); a symmetric "
    "form has all dots on the diagonal, and directionality compares how far dots lie beyond the two dashed "
    "thresholds. The second figure shows the eigenvalues of the symmetric and of the skew part, largest first: a "
    "part that holds little of the form lies near 0."
)


def head_forms_section(forms: Sequence[HeadForm]) -> Section:
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
    for number, (key, own) in enumerate(stacks.items(), 1):
        above = f"{stack_name(*key)}\n" if len(stacks) > 1 else ""
        heads = f"{', '.join(form.label for form in own)} of {short_name(key[0])}, {key[1]}"
        for name, label, panel, rows in (
            ("norms", "Row norms against column norms of", _norm_panel, _norm_rows),
            ("spectra", "Spectra of both parts of", _spectrum_panel, _spectrum_rows),
        ):
            chart = Figure([panel(form, above) for form in own], columns=3, height=300)
            table = [
                {"model": form.model, "stack": form.stack, "head": form.label} | row
                for form in own
                for row in rows(form)
            ]
            id = f"forms-{name}" if number == 1 else f"forms-{name}-{number}"
            figures.append(PageFigure(id, f"{label} {heads}.", chart, table))
    return Section("forms", "The form of single heads", _READING, tuple(figures))


def _title(form: HeadForm, score: str) -> str:
    """Return head and score."""
    value = f"{round(getattr(form, score), 2) + 0.0:.2f}".replace("-", "−")  # no −0.00
    return f"{form.label}: {score} {value}"


def _norm_rows(form: HeadForm) -> Iterator[dict[str, Any]]:
    for at, (row, column) in enumerate(zip(form.row_norms, form.column_norms, strict=True)):
        yield {"dimension": at, "row norm": row, "column norm": column}


def _spectrum_rows(form: HeadForm) -> Iterator[dict[str, Any]]:
    for at, (symmetric, skew) in enumerate(zip(form.symmetric, form.skew, strict=True), 1):
        yield {"number": at, "symmetric": symmetric, "skew": skew}


def _norm_panel(form: HeadForm, above: str) -> Panel:
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
    return Panel(above + _title(form, "directionality"), series, x, y)


def _spectrum_panel(form: HeadForm, above: str) -> Panel:
    series: list[Series] = [Level(0, width=1, dash="-")]
    for name, values, colour, symbol in (
        ("symmetric part", form.symmetric, GREEN, "circle"),
        ("skew part, divided by i", form.skew, PINK, "diamond"),
    ):
        shares = values / form.norm if form.norm > 0 else values
        style = {"symbol": symbol, "hover": "{x}: {y:.3f}"}
        series.append(Line(list(range(1, len(values) + 1)), shares, colour, name, 1.5, size=4, **style))  # type: ignore[arg-type]
    axes = (Axis("number of the eigenvalue"), Axis("eigenvalue / ‖M‖"))
    return Panel(above + _title(form, "symmetry"), series, *axes)
