"""Draw the pictures of docs/concepts/, from the bundled models and from small made-up data.

    python -m tools.concept_pictures [docs/images/concepts]

The numbers in the titles are those that attngeo computes for what is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import attngeo
from attngeo.arrays import Floats
from attngeo.charts import GREY, LIGHT_GREY, stack_colour
from attngeo.organization import planted
from attngeo.show.matplotlib import new_figure, panel_title, save_figure, style_axes
from attngeo.weights.scoring import GAMMA, threshold
from tools.form_pictures import COLOUR_MAP, two_decimals

MODELS = ("encoder", "decoder")
DRAWS = 1000  # of the null


def forms(name: str) -> list[attngeo.Form]:
    """Return the form of each layer of a bundled model, the sum of the forms of its heads."""
    layers = attngeo.attention_layers(attngeo.bundled(name))
    # One key head per query head: the sum over heads is a product of the factors side by side.
    return [attngeo.Form(np.hstack(list(layer.query)), np.hstack(list(layer.key))) for layer in layers]


def draw_entries(ax: Axes, matrix: Floats, largest: float, title: str) -> None:
    ax.imshow(matrix, cmap=COLOUR_MAP, vmin=-largest, vmax=largest, interpolation="nearest")
    panel_title(ax, title)
    ax.set_xticks([])
    ax.set_yticks([])


def parts_figure() -> Figure:
    """Draw the last layer form of both models with its symmetric and its skew part."""
    figure = new_figure(7.4, 5.4)
    for row, name in zip(figure.subplots(2, 3), MODELS, strict=True):
        form = forms(name)[-1]
        m = form.dense().astype(np.float64)[:48, :48]  # a corner: 128 × 128 entries are too small to see
        largest = float(np.quantile(np.abs(m), 0.99))
        share = (1 + form.symmetry()) / 2  # ‖M_s‖²/‖M‖² of the whole form
        draw_entries(row[0], m, largest, f"{name}: M, symmetry {two_decimals(form.symmetry())}")
        draw_entries(row[1], (m + m.T) / 2, largest, f"symmetric part, {share:.0%}")
        draw_entries(row[2], (m - m.T) / 2, largest, f"skew part, {1 - share:.0%}")
        row[0].set_ylabel("query")
        row[0].set_xlabel("key")
    return figure


def norms_figure() -> Figure:
    """Draw the sorted row and column norms of a layer form of both models, with the thresholds of directionality."""
    figure = new_figure(7.4, 3.2)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, name in zip(axes, MODELS, strict=True):
        form = forms(name)[2]
        for norms, label, style in ((form.row_norms(), "rows", "-"), (form.column_norms(), "columns", "--")):
            relative = np.sort(np.asarray(norms, np.float64))[::-1] / np.mean(norms)
            limit = threshold(relative, GAMMA).item()
            colour = stack_colour(name) if label == "columns" else GREY
            ax.plot(
                relative, color=colour, linestyle=style, label=f"{label}: {(relative > limit).sum()} above threshold"
            )
            ax.axhline(limit, color=colour, linestyle=":", linewidth=1)
            ax.fill_between(range(len(relative)), limit, relative, where=relative > limit, color=colour, alpha=0.25)
        panel_title(ax, f"{name}: directionality {two_decimals(form.directionality())}")
        ax.set_xlabel("rows or columns, largest norm first")
        style_axes(ax)
        ax.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("norm / mean norm")
    return figure


def null_figure() -> Figure:
    """Draw the scores of random forms of the shape of a bundled layer, and those of the bundled layers."""
    rng = np.random.default_rng(0)
    shape = np.asarray(forms("encoder")[0].query).shape  # [d, heads · r]
    random = [attngeo.Form(*rng.normal(size=(2, *shape))) for _ in range(DRAWS)]
    figure = new_figure(7.4, 3.2)
    axes = figure.subplots(1, 2)
    for ax, score in zip(axes, ("symmetry", "directionality"), strict=True):
        values = [getattr(form, score)() for form in random]
        ax.hist(values, bins=40, color=LIGHT_GREY, label=f"{DRAWS:,} random forms")
        for name in MODELS:
            for place, form in enumerate(forms(name)):
                label = f"layers of the {name}" if place == 0 else None
                ax.axvline(getattr(form, score)(), color=stack_colour(name), linewidth=1.6, label=label)
        panel_title(ax, score, f"random: {two_decimals(np.mean(values))} ± {np.std(values):.2f}")
        style_axes(ax, "y")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    axes[0].set_ylabel("number of random forms")
    return figure


def trees_figure() -> Figure:
    """Draw a matrix with planted trees as given and as organised, between its trees."""
    array, _ = planted((64, 64), seed=3)
    organization = attngeo.organize(array)
    figure = new_figure(7.4, 4.0)
    before, after = figure.subplots(1, 2)
    low, high = np.quantile(array, (0.01, 0.99))
    options = {"cmap": "viridis", "vmin": low, "vmax": high, "interpolation": "nearest"}
    before.imshow(array, **options)
    after.imshow(organization.reordered(), **options)
    panel_title(before, "as given")
    panel_title(after, "in the order of the trees")
    rows, columns = organization.trees
    for level in range(1, 4):  # the borders of the folders of the first levels
        for tree, line in ((rows, after.axhline), (columns, after.axvline)):
            folders = tree.levels[level][tree.order]
            for border in np.flatnonzero(np.diff(folders)):
                line(border + 0.5, color="white", linewidth=2.0 - 0.5 * level)
    for ax in (before, after):
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def haar_figure() -> Figure:
    """Draw a small partition tree and the Haar functions that belong to its folders."""
    tree = attngeo.Tree([[0] * 8, [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 3, 3], list(range(8))])
    basis = tree.haar()  # [8, 8], one function per column
    figure = new_figure(7.4, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    for level, folders in enumerate(tree.levels):
        for label in np.unique(folders):
            inside = np.flatnonzero(folders == label)
            left.plot(
                [inside[0] - 0.35, inside[-1] + 0.35], [-level, -level], color=stack_colour("encoder"), linewidth=6
            )
            if level:
                parent = np.flatnonzero(tree.levels[level - 1] == tree.levels[level - 1][inside[0]])
                left.plot([inside.mean(), parent.mean()], [-level, 1 - level], color=LIGHT_GREY, zorder=0)
    panel_title(left, "a tree of eight elements")
    left.set_yticks([0, -1, -2, -3], ["root", "level 1", "level 2", "leaves"])
    left.set_xlabel("element")
    style_axes(left, "x")
    for place, vector in enumerate(basis.T):
        right.axhline(-place, color=LIGHT_GREY, linewidth=0.8)
        right.bar(
            np.arange(8), 0.38 * vector / np.abs(vector).max(), bottom=-place, width=0.85, color=stack_colour("decoder")
        )
    panel_title(right, "its eight Haar functions")
    right.set_yticks([])
    right.set_xlabel("element")
    right.spines[["top", "right", "left"]].set_visible(False)
    return figure


def paraproduct_figure() -> Figure:
    """Draw a smooth matrix, its exponential, the paraproduct and what is left."""
    array, (rows, columns) = planted((64, 64), seed=3)
    centred = (array - array.mean()) / array.std()
    return attngeo.paraproduct(0.5 * centred, rows, columns).plot()


PICTURES = {
    "parts": parts_figure,
    "norms": norms_figure,
    "null": null_figure,
    "trees": trees_figure,
    "haar": haar_figure,
    "paraproduct": paraproduct_figure,
}


def main(arguments: Sequence[str]) -> None:
    """Write all pictures to a folder."""
    folder = Path(arguments[0] if arguments else "docs/images/concepts")
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        save_figure(draw(), folder / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
