"""`gradient_figure`: a backward pass, as β, the contribution of each position, the symmetry and norms of updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attngeo.charts import (
    BLUE,
    DIVERGING,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PAGE,
    Axis,
    Bar,
    Figure,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Series,
    token_label,
)
from attngeo.show.matplotlib import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.training.gradients.terms import GradientTerms

_ROLES = {"context": (BLUE, "-"), "prediction": (ORANGE, "--")}
_MOST_LABELS = 28  # a longer sequence is not labelled token by token


def gradient_figure(
    several: Sequence[GradientTerms],
    heads: Sequence[str | None] | None = None,
    tokens: Sequence[Sequence[str]] | None = None,
) -> Drawing:
    """Draw four panels per model: β of one head, contributions by role and position, the update of each head.

    several: the terms of each model
    heads:   per model the label of the head whose β is drawn; by default the same head of all models, the one whose
             update is largest in all of them; None for the head with the largest update of one model
    tokens:  per model the tokens of the first sequence, which label the axes of β
    """
    common = _common_head(several)
    rows = []
    for at, terms in enumerate(several):
        head = (heads[at] if heads is not None else common) or terms.largest
        beta = _beta_panel(terms, head, tokens[at] if tokens is not None else ())
        rows.append([beta, _position_panel(terms), _symmetry_panel(terms), _norm_panel(terms)])
    columns = list(zip(*rows, strict=True))
    shared = [columns[0], _same(columns[1], "y"), _same(columns[2], "y"), _same(_same(columns[3], "x"), "y")]
    panels = [panel for row in zip(*shared, strict=True) for panel in row]
    return drawn(Figure(panels, 2, size=(PAGE, 5.2 * len(several)), legend="inside"))


def _common_head(several: Sequence[GradientTerms]) -> str | None:
    """Return the head that all models have and whose update, relative to the largest of its model, is largest in all.

    It is chosen by the smallest of these shares; None where the models have no head in common.
    """
    shares = []
    for terms in several:
        norms = {row.label: row.norm for row in terms.scores}
        largest = max(norms.values()) or 1.0
        shares.append({label: norm / largest for label, norm in norms.items()})
    labels = [label for label in shares[0] if all(label in others for others in shares)] if shares else []
    return max(labels, key=lambda label: min(share[label] for share in shares), default=None)


def _beta_panel(terms: GradientTerms, label: str, tokens: Sequence[str]) -> Panel:
    """Return β of the first sequence, up to its last position with a non-zero entry.

    Entries that are 0 in every sequence, such as those of a causal mask, are grey; white is a β near 0.
    """
    beta = terms[label].beta[0]  # [N, N]
    used = np.flatnonzero(beta.any(0) | beta.any(1))
    size = used[-1] + 1 if len(used) else len(beta)
    beta, absent = beta[:size, :size], ~np.any(terms[label].beta[:, :size, :size], axis=0)  # [size, size]
    # A few entries are much larger than the rest; signed square roots keep the rest visible.
    shown = np.sign(beta) * np.sqrt(np.abs(beta))
    limit = float(np.abs(shown).max()) or 1.0
    ends = np.array([-1, -0.5, 0, 0.5, 1]) * limit
    ticks = {tick: f"{tick * abs(tick):.1e}".replace("-", "−") if tick else "0" for tick in ends.tolist()}
    series: list[Series] = [Heatmap(shown, (-limit, limit), DIVERGING, bar=Bar(ticks=ticks))]
    if absent.any():
        series.append(Heatmap(np.where(absent, 0.0, np.nan), (0, 1), LIGHT_GREY))
    names = tuple(token_label(token) for token in tokens[: len(beta)])
    names = names if len(names) == len(beta) <= _MOST_LABELS else ()
    x = Axis("context j" + " (first sequence)" * (len(terms[label].beta) > 1), categories=names, whole=True)
    y = Axis("prediction i", categories=names, whole=True, reverse=True)
    title = f"{terms.name}: β of {label}" if terms.name else f"β of {label}"
    return Panel(title, series, x, y, "root scale; grey: no term" if absent.any() else "root scale")


def _position_panel(terms: GradientTerms) -> Panel:
    """Return the norm that each position contributes in each role, relative to the mean over positions."""
    several = len(terms.by_position) > 1
    series: list[Series] = [Level(1, width=1.2, dash=":")]
    for stack, roles in terms.by_position.items():
        for name, values in roles.items():
            colour, dash = _ROLES[name]
            label = f"{stack}, as {name}" if several else f"as {name}"
            series.append(Line(range(len(values)), values, colour, label, 1.8, dash))
    y = Axis("norm added / mean over positions", zero=True)
    return Panel("contribution by role", series, Axis("position", whole=True), y, "mean over heads")


def _symmetry_panel(terms: GradientTerms) -> Panel:
    """Return the symmetry of the update and of β, one dot per head."""
    layers = {name: at for at, name in enumerate(dict.fromkeys((row.stack, row.layer) for row in terms.scores))}
    series: list[Series] = [Level(0, width=1.2, dash=":")]
    for shift, score, colour, label in ((-0.15, "symmetry", BLUE, "update"), (0.15, "pairing", ORANGE, "β")):
        x = [layers[row.stack, row.layer] + shift for row in terms.scores]
        series.append(Points(x, [getattr(row, score) for row in terms.scores], colour, label, opacity=0.75))
    several = len({stack for stack, _ in layers}) > 1
    ticks = {float(at): f"{stack[:3]} {number}" if several else str(number) for (stack, number), at in layers.items()}
    return Panel("symmetry", series, Axis("layer", ticks=ticks), Axis("symmetry"), "1 symmetric, −1 skew")


def _norm_panel(terms: GradientTerms) -> Panel:
    """Return the relative spread of the column norms of each update against that of its row norms."""
    rows, columns = ([getattr(row, name) for row in terms.scores] for name in ("row_spread", "column_spread"))
    ends = (min(*rows, *columns), max(*rows, *columns))
    series: list[Series] = [Line(ends, ends, GREY, width=1.5, dash="--"), Points(rows, columns, opacity=0.75)]
    x, y = Axis("spread of row norms"), Axis("spread of column norms")
    return Panel("norms of the update", series, x, y, "dashed: equal")


def _same(panels: Iterable[Panel], side: str) -> list[Panel]:
    """Give panels of several models the same range, so that they can be compared."""
    panels = list(panels)
    if len(panels) == 1:
        return panels
    values = np.concatenate(
        [
            np.asarray(getattr(one, side), float)
            for panel in panels
            for one in panel.series
            if isinstance(one, Line | Points)
        ]
    )
    low, high = np.nanmin(values), np.nanmax(values)
    axes = [getattr(panel, side) for panel in panels]
    margin = 0.05 * (high - low) or 1.0
    span = (0.0 if axes[0].zero else float(low - margin), float(high + margin))
    return [replace(panel, **{side: replace(axis, range=span)}) for panel, axis in zip(panels, axes, strict=True)]
