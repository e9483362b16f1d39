"""An encoder compared with a decoder, as text and as a figure: scores per layer and, where known, over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING

from attngeo.charts import COLOURS, PAGE, Axis, Figure, Panel
from attngeo.show.matplotlib import drawn
from attngeo.show.scores import SCORE_LEGEND, score_panels
from attngeo.show.tables import WIDTH, aligned
from attngeo.show.training import median_and_band
from attngeo.weights.scoring.score_table import layer_nulls
from attngeo.weights.scoring.verdict import verdicts

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

    from attngeo.training.monitoring.records import Record
    from attngeo.weights.scoring.score_table import NullLevel

    Training = Mapping[str, Sequence[Record]]  # model → its training records

_SCORES = ("symmetry", "directionality")


def demo_text(frame: pl.DataFrame, training: Training, width: int = WIDTH) -> str:
    """Return the scores of two models side by side, nulls and verdicts below them, their training, and a legend.

    frame:    columns as in `ScoreTable.frame`; `model` is the short name that heads each pair of columns
    training: the training records of each model, or nothing
    width:    characters of a line of the verdicts
    """
    names = frame["model"].unique(maintain_order=True).to_list()
    sentences = [line for one in verdicts(frame) for line in wrap(f"{one.model}: {one.sentence}", width)]
    sections = [_layer_table(frame, names), "\n".join([*sentences, ""])]
    sections += [_training_table(training, names)] if training else []
    legend = [*SCORE_LEGEND, "random layer: mean ± standard deviation for independent random weights of the same shape"]
    return "\n".join([*sections, *legend, ""])


def _layer_table(frame: pl.DataFrame, names: list[str]) -> str:
    parts = [frame.filter(model=name) for name in names]
    layers = [part.filter(part["head"].is_null()).sort("layer") for part in parts]
    heads = [part.drop_nulls("head") for part in parts]
    nulls = layer_nulls(frame)
    rows = [["", *(name for name in names for _ in _SCORES)], ["layer", *(_SCORES * len(names))]]
    for number in range(max(part.height for part in layers)):
        values = (_signed(part[score][number]) if number < part.height else "" for part in layers for score in _SCORES)
        rows.append([str(number), *values])
    rows.append([""] * len(rows[0]))
    for title, some in (("median layer", layers), ("median head", heads)):
        rows.append([title, *(_signed(part[score].median()) for part in some for score in _SCORES)])
    keys = [part.select("model", "stack").row(0) for part in parts]
    rows.append(["random layer", *(_null_cell(nulls[key][score]) for key in keys for score in _SCORES)])
    return "\n".join(aligned(rows, right=[False] + [True] * (len(rows[0]) - 1))) + "\n"


def _null_cell(level: NullLevel) -> str:
    return f"{level.mean:+.3f}" + (f" ± {level.std:.3f}" if level.std else "")


def _training_table(training: Training, names: list[str]) -> str:
    rows = [["", *(name for name in names for _ in range(3))], ["step", *(["loss", *_SCORES] * len(names))]]
    for records in zip(*(training[name] for name in names), strict=True):
        cells = [
            cell
            for record in records
            for cell in (f"{record['eval_loss']:.3f}", *(_signed(median(record[score])) for score in _SCORES))
        ]
        rows.append([str(records[0]["step"]), *cells])
    text = "\n".join(aligned(rows, right=[True] * len(rows[0])))
    return f"Held-out loss and median layer over training:\n{text}\n"


def _signed(value: object) -> str:
    return f"{value:+.3f}" if isinstance(value, (int, float)) else "-"


def demo_figure(frame: pl.DataFrame, training: Training) -> Drawing:
    """Draw the scores by layer and head above and, where records are given, the layers over training below."""
    panels = score_panels(frame)
    for score in _SCORES if training else ():
        series = [
            part
            for colour, records in zip(COLOURS, training.values(), strict=False)
            for part in median_and_band([(record["step"], record[score]) for record in records], colour)
        ]
        panels.append(
            Panel(f"{score} over training", series, Axis("step"), note="line: median layer, band: all layers")
        )
    return drawn(Figure(panels, columns=2, size=(PAGE, 5.6 if training else 3.3)))
