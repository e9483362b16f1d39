"""An encoder against a decoder: scores by layer and, where they are known, over training; as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from attngeo.show.tables import aligned

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SCORES = ("symmetry", "directionality")
Training = Mapping[str, Sequence[Mapping[str, Any]]]  # model → its records


def side_by_side(frame: pl.DataFrame, training: Training) -> str:
    """The layers of two models beside one another with what chance gives, then the course of their training.

    frame     rows of both models, `model` saying which
    training  records of each, if there are any
    """
    names = frame["model"].unique(maintain_order=True).to_list()
    return "\n".join([_layers(frame, names), *([_course(training, names)] if training else [])])


def _layers(frame: pl.DataFrame, names: list[str]) -> str:
    import polars as pl

    parts = [frame.filter(pl.col("model") == name) for name in names]
    layers = [part.filter(pl.col("head").is_null()).sort("layer") for part in parts]
    rows = [["", *(name for name in names for _ in SCORES)], ["layer", *(SCORES * len(names))]]
    for number in range(max(part.height for part in layers)):
        values = (_signed(part[score][number]) if number < part.height else "" for part in layers for score in SCORES)
        rows.append([str(number), *values])
    heads = [part.drop_nulls("head") for part in parts]
    chance = []
    for part in layers:
        for score in SCORES:
            mean = 1 / part["query_width"][0] if score == "symmetry" else 0.0
            spread = _spread(part, score, mean)
            chance.append(f"{mean:+.3f}" + (f" ± {spread:.3f}" if spread else ""))
    rows.append([""] * len(rows[0]))
    rows.append(["median layer", *(_signed(part[score].median()) for part in layers for score in SCORES)])
    rows.append(["median head", *(_signed(part[score].median()) for part in heads for score in SCORES)])
    rows.append(["random layer", *chance])
    return "\n".join(aligned(rows, right=[False] + [True] * (len(rows[0]) - 1))) + "\n"


def _spread(layers: pl.DataFrame, score: str, mean: float) -> float:
    """Standard deviation of chance, read back from the score that is furthest from it."""
    known = [(abs(z), (value - mean) / z) for value, z in zip(layers[score], layers[f"{score}_z"], strict=True) if z]
    return float(max(known)[1]) if known else 0.0


def _course(training: Training, names: list[str]) -> str:
    rows = [["", *(name for name in names for _ in range(3))], ["step", *(["loss", *SCORES] * len(names))]]
    for records in zip(*(training[name] for name in names), strict=True):
        cells = [
            cell
            for record in records
            for cell in (f"{record['eval_loss']:.3f}", *(_signed(median(record[score])) for score in SCORES))
        ]
        rows.append([str(records[0]["step"]), *cells])
    text = "\n".join(aligned(rows, right=[True] * len(rows[0])))
    return f"Held-out loss and median layer over training:\n{text}\n"


def _signed(value: Any) -> str:
    return "-" if value is None else f"{value:+.3f}"


def demo_figure(frame: pl.DataFrame, training: Training) -> Figure:
    """Above, the scores of `frame` by layer and head; below, the layers over training where records were given."""
    from attngeo.show.canvas import new_figure, style_axes, panel_title
    from attngeo.show.score_figures import COLOURS, draw_scores

    figure = new_figure(10, 7.8 if training else 4.6)
    grid = figure.subplots(2 if training else 1, 2, squeeze=False)
    draw_scores(figure, grid[0], frame)
    for ax, score in zip(grid[1] if training else (), SCORES, strict=False):
        for colour, records in zip(COLOURS, training.values(), strict=False):
            steps = [row["step"] for row in records]
            ax.plot(
                steps, [median(row[score]) for row in records], color=colour, linewidth=1.8, marker="o", markersize=3
            )
            low, high = ([end(row[score]) for row in records] for end in (min, max))
            ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        panel_title(ax, f"{score} over training", "line: median layer, band: all layers")
        ax.set_xlabel("step")
        style_axes(ax)
    return figure
