"""Figures of a backward pass: β, the contribution of each position, and the symmetry and norms of each update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from attngeo.show.canvas import (
    BLUE,
    DASHED,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PAGE,
    TINY,
    for_print,
    new_figure,
    panel_title,
    style_axes,
    token_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.training.gradients.terms import GradientTerms

_ROLES = {"context": (BLUE, "-"), "prediction": (ORANGE, "--")}
_MOST_LABELS = 28  # a longer sequence is not labelled token by token


@for_print
def gradient_figure(
    several: Sequence[GradientTerms],
    heads: Sequence[str | None] | None = None,
    tokens: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Draw four panels per model: β of one head, contributions by role and position, the update of each head.

    several: the terms of each model
    heads:   per model the label of the head whose β is drawn; by default the same head of all models, the one whose
             update is largest in all of them; None for the head with the largest update of one model
    tokens:  per model the tokens of the first sequence, which label the axes of β
    """
    common = _common_head(several)
    figure = new_figure(PAGE, 5.2 * len(several))
    grid = figure.subplots(2 * len(several), 2, squeeze=False)
    axes = [grid[at : at + 2].ravel() for at in range(0, len(grid), 2)]  # the panels of each model
    for row, terms in enumerate(several):
        head = heads[row] if heads is not None else common
        _draw_beta(figure, axes[row][0], terms, head or terms.largest, tokens[row] if tokens is not None else ())
        _draw_positions(axes[row][1], terms)
        _draw_symmetry(axes[row][2], terms)
        _draw_norm_spread(axes[row][3], terms)
    _share_limits([row[1] for row in axes], "y")
    _share_limits([row[2] for row in axes], "y")
    _share_limits([row[3] for row in axes], "x")
    _share_limits([row[3] for row in axes], "y")
    return figure


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


def _draw_beta(figure: Figure, ax: Axes, terms: GradientTerms, label: str, tokens: Sequence[str]) -> None:
    """Draw β of the first sequence, up to its last position with a non-zero entry.

    Entries that are 0 in every sequence, such as those of a causal mask, are grey; white is a β near 0.
    """
    from matplotlib.colors import ListedColormap

    beta = terms[label].beta[0]  # [N, N]
    used = np.flatnonzero(beta.any(0) | beta.any(1))
    size = used[-1] + 1 if len(used) else len(beta)
    beta, absent = beta[:size, :size], ~np.any(terms[label].beta[:, :size, :size], axis=0)  # [size, size]
    # A few entries are much larger than the rest; signed square roots keep the rest visible.
    shown = np.sign(beta) * np.sqrt(np.abs(beta))
    limit = float(np.abs(shown).max()) or 1.0
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    if absent.any():
        ax.imshow(np.where(absent, 0.0, np.nan), cmap=ListedColormap([LIGHT_GREY]), interpolation="nearest")
    bar = figure.colorbar(image, ax=ax, shrink=0.85, pad=0.02)
    ticks = np.array([-1, -0.5, 0, 0.5, 1]) * limit
    bar.set_ticks(list(ticks), labels=[f"{tick * abs(tick):.1e}".replace("-", "−") if tick else "0" for tick in ticks])
    bar.ax.tick_params(labelsize=TINY)
    names = [token_label(token) for token in tokens[: len(beta)]]
    if len(names) == len(beta) <= _MOST_LABELS:
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=TINY)
        ax.set_yticks(range(len(names)), names, fontsize=TINY)
    else:
        ax.locator_params(integer=True)
    ax.set_xlabel("context j" + " (first sequence)" * (len(terms[label].beta) > 1))
    ax.set_ylabel("prediction i")
    note = "root scale; grey: no term" if absent.any() else "root scale"
    panel_title(ax, f"{terms.name}: β of {label}" if terms.name else f"β of {label}", note)


def _draw_positions(ax: Axes, terms: GradientTerms) -> None:
    """Draw the norm that each position contributes in each role, relative to the mean over positions."""
    several = len(terms.by_position) > 1
    for stack, roles in terms.by_position.items():
        for name, values in roles.items():
            colour, line_style = _ROLES[name]
            label = f"{stack}, as {name}" if several else f"as {name}"
            ax.plot(values, line_style, color=colour, linewidth=1.2, label=label)
    ax.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("position")
    ax.set_ylabel("norm added / mean over positions")
    ax.legend(frameon=False)
    panel_title(ax, "contribution by role", "mean over heads")
    style_axes(ax)


def _draw_symmetry(ax: Axes, terms: GradientTerms) -> None:
    """Draw the symmetry of the update and of β, one dot per head."""
    layers = {name: at for at, name in enumerate(dict.fromkeys((row.stack, row.layer) for row in terms.scores))}
    for shift, score, colour, label in ((-0.15, "symmetry", BLUE, "update"), (0.15, "pairing", ORANGE, "β")):
        x = [layers[row.stack, row.layer] + shift for row in terms.scores]
        ax.scatter(x, [getattr(row, score) for row in terms.scores], s=9, color=colour, alpha=0.75, label=label)
    ax.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    several = len({stack for stack, _ in layers}) > 1
    ax.set_xticks(range(len(layers)), [f"{stack[:3]} {n}" if several else str(n) for stack, n in layers])
    ax.set_xlabel("layer")
    ax.set_ylabel("symmetry")
    ax.legend(frameon=False)
    panel_title(ax, "symmetry", "1 symmetric, −1 skew")
    style_axes(ax)


def _draw_norm_spread(ax: Axes, terms: GradientTerms) -> None:
    """Draw the relative spread of the column norms of each update against that of its row norms."""
    rows, columns = ([getattr(row, name) for row in terms.scores] for name in ("row_spread", "column_spread"))
    ax.scatter(rows, columns, s=9, color=BLUE, alpha=0.75)
    ax.axline((0, 0), slope=1, color=GREY, linewidth=1, linestyle=DASHED)
    ax.set_xlabel("spread of row norms")
    ax.set_ylabel("spread of column norms")
    panel_title(ax, "norms of the update", "dashed: equal")
    style_axes(ax)


def _share_limits(axes: Sequence[Axes], side: Literal["x", "y"]) -> None:
    """Give all panels the same limits, so that models can be compared."""
    limits = [ax.get_xlim() if side == "x" else ax.get_ylim() for ax in axes]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    for ax in axes:
        ax.set(**{f"{side}lim": (low, high)})
