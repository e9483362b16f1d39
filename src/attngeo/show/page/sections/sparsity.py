"""The sparsity of an organised network against its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.show.canvas import GREY
from attngeo.show.organization_figures import BASES, exponent_label
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import Panel, Trace, axis, columns, figure, rounded, rounded_number

if TYPE_CHECKING:
    from attngeo.organization.expansion import Profile, SparsityControls

READING = (
    "The first figure shows the error that is left when only the largest coefficients are kept: the lower a curve, "
    "the fewer numbers describe the network. The organised trees are worth their work where they stay below the "
    "controls, which are other bases and shuffled axes."
)
PERMUTED_READING = " Trees fitted to permuted values show how much of the gain is fitted noise."
REGULARITY_READING = (
    " In the second figure a steeper line means a smoother network: its slope minus ½ is the exponent α."
)
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = {"solid": "circle", "dash": "diamond-open", "dot": "x", "dashdot": "square"}
_SMALLEST = 3e-3  # error at which the first figure ends


def sparsity_section(comparison: SparsityControls, *, id: str = "sparsity") -> Section:
    """Return the best-n-term errors and the regularity of every basis.

    >>> from attngeo.organization import organize, planted
    >>> section = sparsity_section(organize(planted((32, 32, 12), seed=0)[0]).expand().compare(permuted=False))
    >>> [trace["name"] for trace in section.figures[0].plotly["data"]]
    ['trees', 'shuffled axes', 'dyadic trees', 'cosines per head', 'cosines']
    >>> "permuted" in section.reading
    False
    """
    errors = Panel(
        "error of the best n terms",
        [_error_curve(profile) for profile in comparison.profiles],
        axis("share of coefficients kept, %", type="log", exponentformat="power", dtick=1),
        axis("relative l2 error", type="log", range=rounded([np.log10(_SMALLEST), 0.1]), dtick=1),
    )
    curves = [
        {"basis": profile.name, "coefficients kept": int(count), "relative error": float(error)}
        for profile in comparison.profiles
        for count, error in zip(profile.sparsity.counts, profile.sparsity.errors, strict=True)
    ]
    figures = [
        PageFigure(
            f"{id}-errors",
            "Relative error against the share of coefficients kept, for the trees and each control.",
            figure([errors], height=400),
            columns(curves),
        )
    ]
    fitted = [profile for profile in comparison.profiles if profile.holder is not None and len(profile.holder.support)]
    if fitted:
        regular = Panel(
            "size of the coefficients by support",
            [trace for profile in fitted for trace in _fit(profile)],
            axis("log₂ of the support |R|"),
            axis("log₂ rms coefficient"),
        )
        label = "Size of the Haar coefficients against their support, with fitted lines."
        figures.append(PageFigure(f"{id}-regularity", label, figure([regular], height=400), columns(_points(fitted))))
    gains = f"The l1/l2 of the trees is {comparison.gain():.1%} below that of dyadic trees"
    permuted = "permuted: trees" in comparison
    if permuted:
        gains += f", {comparison.gain(permuted=True):.1%} for permuted values"
    reading = READING + PERMUTED_READING * permuted + REGULARITY_READING * bool(fitted)
    return Section(id, "Sparsity", reading, tuple(figures), (f"{gains}.",))


def _style(profile: Profile) -> tuple[str, str, float]:
    colour, line, width = BASES.get(profile.name, (GREY, "-", 1.4))
    return colour, _DASHES[line], width


def _error_curve(profile: Profile) -> Trace:
    colour, dash, width = _style(profile)
    curve = profile.sparsity
    drawn = curve.errors > 0  # the axis is logarithmic
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(100 * curve.counts[drawn] / curve.counts[-1]),
        "y": rounded(curve.errors[drawn]),
        "line": {"color": colour, "dash": dash, "width": round(width + 0.4, 1)},
        "hovertemplate": "%{x:.3g}% of the coefficients: error %{y:.3g}",
        "name": profile.name,
    }


def _fit(profile: Profile) -> list[Trace]:
    """Return the points of a basis and the line through them."""
    fit = profile.holder
    assert fit is not None
    colour, dash, width = _style(profile)
    ends = np.array([fit.support.min(), fit.support.max()])
    common: dict[str, Any] = {"type": "scatter", "legendgroup": profile.name}
    return [
        common
        | {
            "mode": "markers",
            "x": rounded(fit.support),
            "y": rounded(fit.log_rms),
            "marker": {"color": colour, "size": 6, "symbol": _SYMBOLS[dash]},
            "hovertemplate": "support 2^%{x:.1f}: %{y:.2f}",
            "name": exponent_label(profile.name, fit),
        },
        common
        | {
            "mode": "lines",
            "x": rounded(ends),
            "y": rounded(fit.line(ends)),
            "line": {"color": colour, "dash": dash, "width": width},
            "hoverinfo": "skip",
            "showlegend": False,
        },
    ]


def _points(profiles: list[Profile]) -> list[dict[str, Any]]:
    rows = []
    for profile in profiles:
        fit = profile.holder
        assert fit is not None
        for support, size in zip(fit.support, fit.log_rms, strict=True):
            row = {"basis": profile.name, "log2 support": float(support), "log2 rms": float(size)}
            rows.append(row | {"exponent": rounded_number(fit.exponent), "error": rounded_number(fit.error)})
    return rows
