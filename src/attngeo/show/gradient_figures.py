"""Pictures of what a backward pass does to the forms; like the others, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.show.canvas import BLUE, GREY, ORANGE, new_figure, style_axes, token_label, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.dynamics.gradients.result import GradientTerms

_ROLES = {"context": (BLUE, "-"), "prediction": (ORANGE, "--")}
_NAMED = 28  # positions whose tokens can still be read


def gradient_figure(
    several: Sequence[GradientTerms],
    heads: Sequence[str | None] | None = None,
    tokens: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """A row for each model: β of one head, what tokens add by role and position, the update of every head.

    heads    the head whose β is drawn, None for the one with the largest update
    tokens   names of the positions of the first sequence, for β
    """
    figure = new_figure(15, 0.5 + 3.7 * len(several))
    axes = figure.subplots(len(several), 4, squeeze=False, width_ratios=(1.15, 1.25, 1.1, 1))
    for row, terms in enumerate(several):
        head = heads[row] if heads is not None else None
        _beta(figure, axes[row][0], terms, head or terms.largest, tokens[row] if tokens is not None else ())
        _positions(axes[row][1], terms)
        _symmetry(axes[row][2], terms)
        _spread(axes[row][3], terms)
    _alike([row[1] for row in axes], "y")
    _alike([row[2] for row in axes], "y")
    _alike([row[3] for row in axes], "xy")
    return figure


def _beta(figure: Figure, ax: Axes, terms: GradientTerms, label: str, tokens: Sequence[str]) -> None:
    """β of the first sequence, as far as it has tokens that count."""
    beta = terms[label].beta[0]
    seen = np.flatnonzero(beta.any(0) | beta.any(1))
    beta = beta[: seen[-1] + 1, : seen[-1] + 1] if len(seen) else beta
    # A few pairs outweigh the rest: the root lets the others be seen.
    shown = np.sign(beta) * np.sqrt(np.abs(beta))
    limit = float(np.abs(shown).max()) or 1.0
    picture = ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    bar = figure.colorbar(picture, ax=ax, shrink=0.85, pad=0.02)
    marks = np.array([-1, -0.5, 0, 0.5, 1]) * limit
    bar.set_ticks(list(marks), labels=[f"{mark * abs(mark):.1e}".replace("-", "−") if mark else "0" for mark in marks])
    bar.ax.tick_params(labelsize=7)
    names = [token_label(token) for token in tokens[: len(beta)]]
    if len(names) == len(beta) <= _NAMED:
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        ax.set_yticks(range(len(names)), names, fontsize=6)
    else:
        ax.locator_params(integer=True)
    ax.set_xlabel("context j" + " (first sequence)" * (len(terms[label].beta) > 1))
    ax.set_ylabel("predicted i")
    panel_title(ax, f"{terms.name}: β of {label}" if terms.name else f"β of {label}", "root scale")


def _positions(ax: Axes, terms: GradientTerms) -> None:
    several = len(terms.by_position) > 1
    for stack, roles in terms.by_position.items():
        for name, values in roles.items():
            colour, stroke = _ROLES[name]
            label = f"{stack}, as {name}" if several else f"as {name}"
            ax.plot(values, stroke, color=colour, linewidth=1.6, label=label)
    ax.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("position")
    ax.set_ylabel("norm added, over its mean")
    ax.legend(frameon=False, fontsize=8)
    panel_title(ax, "contribution by role", "mean over heads")
    style_axes(ax)


def _symmetry(ax: Axes, terms: GradientTerms) -> None:
    layers = {name: at for at, name in enumerate(dict.fromkeys((row.stack, row.layer) for row in terms.scores))}
    for shift, figure, colour, label in ((-0.15, "symmetry", BLUE, "update"), (0.15, "pairing", ORANGE, "β")):
        x = [layers[row.stack, row.layer] + shift for row in terms.scores]
        ax.scatter(x, [getattr(row, figure) for row in terms.scores], s=16, color=colour, alpha=0.75, label=label)
    ax.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    several = len({stack for stack, _ in layers}) > 1
    ax.set_xticks(range(len(layers)), [f"{stack[:3]} {n}" if several else str(n) for stack, n in layers], fontsize=8)
    ax.set_xlabel("layer")
    ax.set_ylabel("symmetry")
    ax.legend(frameon=False, fontsize=8)
    panel_title(ax, "symmetry", "1 symmetric, −1 skew")
    style_axes(ax)


def _spread(ax: Axes, terms: GradientTerms) -> None:
    rows, columns = ([getattr(row, name) for row in terms.scores] for name in ("row_spread", "column_spread"))
    ax.scatter(rows, columns, s=16, color=BLUE, alpha=0.75)
    ax.axline((0, 0), slope=1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xlabel("spread of row norms")
    ax.set_ylabel("spread of column norms")
    panel_title(ax, "norms of the update", "above: columns")
    style_axes(ax)


def _alike(axes: Sequence[Any], sides: str) -> None:
    """The same limits for all, so that rows compare."""
    for side in sides:
        limits = [getattr(ax, f"get_{side}lim")() for ax in axes]
        for ax in axes:
            getattr(ax, f"set_{side}lim")(min(low for low, _ in limits), max(high for _, high in limits))
