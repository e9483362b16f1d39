"""`atlas_figure`: the models of an atlas in the plane of two scores, with published models behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import (
    COLOURS,
    COLUMN,
    DASHED,
    GREY,
    LIGHT_GREY,
    PAGE,
    for_print,
    new_figure,
    panel_title,
    style_axes,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 14  # models that get a colour, a marker and a line of the legend; more would not be told apart
HEIGHT = 3.4  # inches, with up to five rows of the legend
_MARKERS = ("o", "s")
_MEANINGS = {
    "symmetry": "symmetry: 1 symmetric, −1 skew",
    "directionality": "directionality: below 0 columns dominate",
}


@for_print
def atlas_figure(points: pl.DataFrame, published: pl.DataFrame, x: str, y: str) -> Figure:
    """Draw one point per model and stack, encoders and decoders in panels of their own.

    points:    columns model, revision, group, x and y, as `attngeo.atlas.views.model_points` returns them
    published: columns group, x and y; drawn in grey
    x, y:      the names of the columns
    """
    groups = [name for name in ("encoders", "decoders", "other stacks") if name in points["group"].to_list()]
    groups = groups or ["encoders", "decoders"]
    styles = _styles(points)
    figure = new_figure(COLUMN if len(groups) == 1 else PAGE, HEIGHT)
    axes = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for ax, group in zip(axes, groups, strict=True):
        behind = published.filter(published["group"] == group)
        if behind.height:
            label = "published, arXiv 2502.10927"
            ax.scatter(behind["x"].to_numpy(), behind["y"].to_numpy(), s=8, color=LIGHT_GREY, label=label, zorder=1)
        _draw_models(ax, points.filter(points["group"] == group), styles)
        ax.axvline(0, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=0)
        ax.axhline(0, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=0)
        panel_title(ax, group, "median over layers")
        ax.set_xlabel(_MEANINGS.get(x, x))
        style_axes(ax)
    axes[0].set_ylabel(_MEANINGS.get(y, y))
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if entries:
        columns = 1 if max(map(len, entries)) > 60 else 2 + (len(groups) > 2)
        rows = -(-len(entries) // columns)
        figure.set_figheight(max(HEIGHT, HEIGHT + 0.14 * (rows - 5)))  # a long legend leaves the panels their height
        places = {"loc": "outside lower center", "ncols": columns, "frameon": False}
        figure.legend(list(entries.values()), list(entries), **places)
    return figure


def _styles(points: pl.DataFrame) -> dict[tuple[str, str | None], dict[str, object]]:
    """Return how the points of each model are drawn; one style for all if there are many."""
    models = points.select("model", "revision").unique(maintain_order=True).rows()
    if len(models) > NAMED:
        label = f"{len(models)} models of the atlas"
        return {model: {"color": COLOURS[0], "marker": "o", "s": 10, "alpha": 0.6, "label": label} for model in models}
    short = [_label(*model) for model in models]
    return {
        model: {
            "color": COLOURS[i % len(COLOURS)],
            "marker": _MARKERS[i // len(COLOURS)],
            "s": 28,
            "label": short[i] if short.count(short[i]) == 1 else model[0],  # two paths may end alike
        }
        for i, model in enumerate(models)
    }


def _draw_models(ax: Axes, points: pl.DataFrame, styles: dict[tuple[str, str | None], dict[str, object]]) -> None:
    """Draw the points of each style together: thousands of models would take long one by one."""
    places: dict[object, list[tuple[float, float]]] = {}
    for model, revision, x, y in points.select("model", "revision", "x", "y").iter_rows():
        places.setdefault(styles[model, revision]["label"], []).append((x, y))
    style_of = {style["label"]: style for style in styles.values()}
    for label, together in places.items():
        xs, ys = zip(*together, strict=True)
        ax.scatter(xs, ys, edgecolors="white", linewidths=0.7, zorder=3, **style_of[label])  # type: ignore[arg-type]


def _label(model: str, revision: str | None) -> str:
    """Return a hub id, or the last two parts of a path, with a revision that is not the main one."""
    parts = short_name(model).split("/")
    # matplotlib leaves labels that begin with an underscore out of the legend.
    name = model if revision is not None else parts[-1].lstrip("_") if parts[0].startswith("_") else "/".join(parts)
    return name if revision in (None, "main") else f"{name}@{revision}"
