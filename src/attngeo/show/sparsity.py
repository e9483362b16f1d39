"""What is compared with controls: the sparsity of organised networks, and what the softmax changes.

sparsity_figure, sparsity_section      best-n-term curves and regularity
invariance_figure, invariance_section  the geometry before and after the softmax
invariance_summary                     what `attngeo invariance` prints
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.charts import BLUE, GREEN, GREY, LIGHT_GREY, ORANGE, PAGE, PINK, Axis, Figure, Line, Panel, Points, Series
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.organization.expansion import SparsityControls
    from attngeo.organization.invariance import InvarianceReport

# ---- sparsity

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


def _sparsity_panels(comparison: SparsityControls) -> tuple[Panel, Panel]:
    """Return the best-n-term errors of all bases, and the regularity of those that have one."""
    errors: list[Series] = []
    fits: list[Series] = []
    for profile in comparison.profiles:
        colour, dash, width = _BASES[profile.name]
        curve = profile.sparsity
        kept = curve.errors > 0  # the axis is logarithmic
        share = 100 * curve.counts[kept] / curve.counts[-1]
        hover = "{x:.3g}% of the coefficients: error {y:.3g}"
        errors.append(Line(share, curve.errors[kept], colour, profile.name, width + 0.4, dash, hover=hover))
        if (fit := profile.holder) is not None and len(fit.support):
            ends = np.array([fit.support.min(), fit.support.max()])
            label = f"{profile.name}: α {fit.exponent:.2f} ± {fit.error:.2f}".replace("-", "−")
            style = (colour, label, _SYMBOLS[dash], 6)
            fits.append(
                Points(fit.support, fit.log_rms, *style, hover="support 2^{x:.1f}: {y:.2f}", group=profile.name)
            )
            fits.append(Line(ends, fit.line(ends), colour, width=width, dash=dash, group=profile.name))
    share_axis = Axis("share of coefficients kept, %", log=True)
    error_axis = Axis("relative l2 error", log=True, range=(3e-3, 1.3))
    axes = Axis("log₂ of the support |R|"), Axis("log₂ rms coefficient")
    return (
        Panel("best n terms", errors, share_axis, error_axis, note="lower is sparser"),
        Panel("regularity", fits, *axes, note="slope − ½ is the exponent α"),
    )


def sparsity_figure(comparison: SparsityControls) -> Drawing:
    """Draw the best-n-term error of each basis, and how its coefficients shrink with the size of their supports."""
    panels = [panel if panel.series else Panel("", (), empty=True) for panel in _sparsity_panels(comparison)]
    return drawn(Figure(panels, 2, size=(PAGE, 4.2), legend="under"))


def sparsity_section(comparison: SparsityControls) -> Section:
    """Return the best-n-term errors and the regularity of every basis.

    >>> from attngeo.organization import organize, planted
    >>> section = sparsity_section(organize(planted((32, 32, 12), seed=0)[0]).expand().compare(permuted=False))
    >>> [trace["name"] for trace in section.figures[0].plotly["data"]]
    ['trees', 'shuffled axes', 'dyadic trees', 'cosines per head', 'cosines']
    >>> "permuted" in section.reading
    False
    """
    errors, regularity = _sparsity_panels(comparison)
    curves = [
        {"basis": profile.name, "coefficients kept": int(count), "relative error": error}
        for profile in comparison.profiles
        for count, error in zip(profile.sparsity.counts, profile.sparsity.errors, strict=True)
    ]
    label = "Relative error against the share of coefficients kept, for the trees and each control."
    figures = [PageFigure("sparsity-errors", label, Figure([errors], height=400), curves)]
    if regularity.series:
        fits = [
            {"basis": profile.name, "log2 support": support, "log2 rms": size}
            | {"exponent": fit.exponent, "error": fit.error}
            for profile in comparison.profiles
            if (fit := profile.holder) is not None
            for support, size in zip(fit.support, fit.log_rms, strict=True)
        ]
        label = "Size of the Haar coefficients against their support, with fitted lines."
        figures.append(PageFigure("sparsity-regularity", label, Figure([regularity], height=400), fits))
    gains = f"The l1/l2 of the trees is {comparison.gain():.1%} below that of dyadic trees"
    permuted = "permuted: trees" in comparison
    if permuted:
        gains += f", {comparison.gain(permuted=True):.1%} for permuted values"
    reading = _SPARSITY_READING + _PERMUTED_READING * permuted + _REGULARITY_READING * bool(regularity.series)
    return Section("sparsity", "Sparsity", reading, tuple(figures), (f"{gains}.",))


# ---- what the softmax changes

_INVARIANCE_LEGEND = """\
affinity rank correlation: Spearman correlation of the affinities before and after the softmax (1: same order)
tree information: mean adjusted mutual information of the levels of the trees before and after (1: identical)
Procrustes distance: between the diffusion maps before and after (0: same shape, 1: nothing in common)
exponent: mixed-Hölder exponent of the logits, and of the residual of the paraproduct of their softmax
control: the same after permuting the values of each row of each head before the softmax"""
_INVARIANCE_READING = (
    "Each row compares the geometry of the logits with that of their softmax; the open circle is the control, in "
    "which the values of each row are permuted. A blue dot is better than the control, judged by the 95% interval of "
    "the difference, an orange one is not; for Procrustes distances smaller is better, for all others larger. In the "
    "second figure, heads above the dashed line have a residual that is smoother than their logits; the dotted line "
    "is at twice the exponent of the logits."
)


def invariance_summary(report: InvarianceReport) -> str:
    """Return the summary that `attngeo invariance` prints: the report, then what its measures mean."""
    return f"{report}\n\n{_INVARIANCE_LEGEND}\n"


def _contrast_panel(report: InvarianceReport, after_axis: str = ": ") -> Panel:
    """Return each measure of agreement between logits and softmax, joined to its control.

    after_axis: what stands between the axis that was compared and the name of the measure
    """
    shown = [one for one in report.contrasts if np.isfinite(one.value)]
    rows = {float(at): one.figure.replace(": ", after_axis, 1) for at, one in enumerate(shown)}
    joins = [x for one in shown for x in (one.control, one.value, None)]
    series: list[Series] = [Line(joins, np.repeat(np.arange(len(shown)), 3), LIGHT_GREY)]
    better = [at for at, one in enumerate(shown) if one.beats_control]
    for label, colour, symbol, side, own in (
        ("control: rows permuted", GREY, "circle-open", "control", range(len(shown))),
        ("better than the control", BLUE, "circle", "value", better),
        ("not better", ORANGE, "circle", "value", sorted({*range(len(shown))} - {*better})),
    ):
        contrasts = [shown[at] for at in own]
        intervals = [
            f"better by {one.low:.3f} to {one.high:.3f}" if one.has_interval else "too few for an interval"
            for one in contrasts
        ]
        values, style = [getattr(one, side) for one in contrasts], (colour, label, symbol, 10)
        if contrasts or side == "control":
            series.append(Points(values, list(own), *style, hover="{x:.3f}; {detail}", details=intervals))
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


def invariance_section(report: InvarianceReport) -> Section:
    """Return the figures of the network with their controls, and the exponents of single heads.

    >>> from attngeo.organization import planted
    >>> section = invariance_section(attngeo.softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50))
    >>> [figure.id for figure in section.figures]
    ['invariance-network', 'invariance-heads']
    """
    contrasts = [
        {
            "figure": one.figure,
            "value": one.value,
            "control": one.control,
            "better by, low": one.low,
            "better by, high": one.high,
            "better than the control": one.beats_control,
        }
        for one in report.contrasts
        if np.isfinite(one.value)
    ]
    label = f"Agreement of the logits with their {report.comparison}, each figure beside its control."
    network = _contrast_panel(report, ":\n")  # narrow enough for a phone
    figures = [PageFigure("invariance-network", label, Figure([network], height=60 + 36 * len(contrasts)), contrasts)]
    if report.heads:
        exponents = [
            {"head": one.head, "control": control, "logits": one.exponent.exponent, "residual": one.residual.exponent}
            for control, heads in ((False, report.heads), (True, report.heads_control))
            for one in heads
        ]
        label = f"Exponents of the residual against those of the logits, for {len(report.heads)} heads and the control."
        chart = Figure([_exponent_panel(report)], height=380)
        figures.append(PageFigure("invariance-heads", label, chart, exponents))
    return Section("invariance", "What the softmax changes", _INVARIANCE_READING, tuple(figures))
