"""Training runs as figures and as a section of a page.

training_figure    the scores of each layer over the steps of one run
training_section   losses, and the median and the range of the layers, of several runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from attngeo.charts import (
    COLOURS,
    COLUMN,
    PAGE,
    SEQUENTIAL,
    Axis,
    Band,
    Bar,
    Figure,
    Level,
    Line,
    Panel,
    Points,
    Series,
    distinct_colours,
)
from attngeo.errors import InputError
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section
from attngeo.show.scores import score_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.training.monitoring.records import Record

# Score → how to read it, in the figure of one run
_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate",
    "max_logit": "largest |attention logit|",
}
_SCORES = ("symmetry", "symmetry_rope", "directionality", "dominance", "self_attending", "max_logit")
_LOSSES = {"eval_loss": "held-out loss", "loss": "training loss"}  # key of a record → title
_DASHES = ("-", "--", ":", "-.")
_READING = (
    "Each curve belongs to one run. Of the scores, the line is the median layer and the band reaches from the "
    "lowest to the highest layer; thin lines are single layers where there is only one run."
)

Curves = dict[int, list[tuple[int, float | None]]]  # layer → its steps and scores; one that was not measured is None


@dataclass(frozen=True)
class _Run:
    """One stack of one run, and how it is drawn."""

    name: str
    stack: str  # "" where records do not name it
    records: Sequence[Record]
    colour: str = COLOURS[0]
    dash: str = "-"

    def curves(self, score: str) -> Curves:
        """Return the curve of a score of each layer."""
        found: Curves = {}
        for record in self.records:
            for stack, number, value in zip(*_layers(record), record.get(score) or (), strict=False):
                if stack == self.stack:
                    found.setdefault(number, []).append((record["step"], value))
        return dict(sorted(found.items()))


def _layers(record: Record) -> tuple[Sequence[str], Sequence[int]]:
    """Return the stacks and the numbers of a record's layers; records of pre-training do not name their stack."""
    count = len(record.get("symmetry") or ())
    return record.get("stack", [""] * count), record.get("layer", range(count))


def _stacks(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(stack for record in records for stack in _layers(record)[0]))


def training_figure(records: Sequence[Record]) -> Drawing:
    """Draw the symmetry and the directionality of each layer over the steps, one row of panels per stack.

    records: as `attngeo.Monitor`, `attngeo track` or `attngeo pretrain` write them. The largest attention logits are
    drawn too where they were measured.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    records = [record for record in records if record.get("symmetry")]
    if not records:
        raise InputError("records: none contains scores, so there is nothing to draw")
    names = [name for name in _PANELS if any(name in record for record in records)]
    panels = []
    for stack in (stacks := _stacks(records)):
        run = _Run("", stack, records)
        numbers = list(run.curves("symmetry"))
        first, span = numbers[0], max(numbers[-1] - numbers[0], 1) / 0.92  # without the yellow end, faint on white
        for name in names:
            series: list[Series] = [Level(0)] if name == "directionality" else []
            for number, points in run.curves(name).items():
                steps, values = zip(*points, strict=True)
                colour = to_hex(colormaps[SEQUENTIAL]((number - first) / span))
                symbol = "circle" if len(steps) < 20 else ""
                series.append(Line(steps, values, colour, width=1.8, symbol=symbol, size=5.5))
            if name == names[-1]:
                series.append(Points((), (), shade=(), limits=(first, first + span), bar=Bar("layer", whole=True)))
            title = f"{stack} {name}".strip().replace("_", " ")
            panels.append(Panel(title, series, Axis("step", whole=True), note=_PANELS[name]))
    size = (COLUMN if len(names) == 1 else PAGE, 2.5 * len(stacks))
    return drawn(Figure(panels, len(names), size=size))


def median_and_band(
    values: Sequence[tuple[int, Sequence[float]]], colour: str, label: str = "", dash: str = "-"
) -> list[Series]:
    """Return the median of the layers over the steps as a line, and their range as a band.

    values: the steps, each with the scores of the layers
    """
    steps, scores = zip(*values, strict=True)
    low, high, middle = ([function(some) for some in scores] for function in (min, max, median))
    symbol = "circle" if len(steps) < 30 else ""
    hover = "step {x:,}, median layer: {y:.3f}"
    return [
        Band(steps, low, high, colour, group=label),
        Line(steps, middle, colour, label, 2.2, dash, symbol, 5, hover=hover),
    ]


def training_section(training: Mapping[str, Sequence[Record]]) -> Section:
    """Return a figure per loss and score that the records of some run hold.

    training: the name of each run and its records, as `attngeo.Monitor`, `attngeo track` or `attngeo pretrain` write
              them

    >>> section = training_section({name: attngeo.training.bundled_records(name) for name in ("encoder", "decoder")})
    >>> [figure.id for figure in section.figures]
    ['training-eval-loss', 'training-symmetry', 'training-directionality', 'training-max-logit']
    """
    runs = _runs(training)
    figures = [*(_loss_figure(training, key, runs) for key in _LOSSES), *(_score_figure(runs, one) for one in _SCORES)]
    return Section("training", "Training", _READING, tuple(figure for figure in figures if figure is not None))


def _runs(training: Mapping[str, Sequence[Record]]) -> list[_Run]:
    """Return all stacks of all runs; the first encoder is blue and the first decoder orange."""
    found = [(name, records, stack) for name, records in training.items() for stack in _stacks(records)]
    known = [stack or next((kind for kind in ("encoder", "decoder") if kind in name), "") for name, _, stack in found]
    runs = []
    for at, ((name, records, stack), colour) in enumerate(zip(found, distinct_colours(known), strict=True)):
        title = ", ".join(filter(None, (short_name(name), "" if stack in name else stack)))
        runs.append(_Run(title, stack, records, colour, _DASHES[known[:at].count(known[at]) % len(_DASHES)]))
    return runs


def _loss_figure(training: Mapping[str, Sequence[Record]], key: str, runs: Sequence[_Run]) -> PageFigure | None:
    title = _LOSSES[key]
    series: list[Series] = []
    rows: list[dict[str, Any]] = []
    for name, records in training.items():
        points = [(record["step"], record[key]) for record in records if isinstance(record.get(key), (int, float))]
        if not points:
            continue
        run = next((one for one in runs if one.records is records), _Run("", "", records))
        steps, losses = zip(*points, strict=True)
        style = {"symbol": "circle" if len(points) < 30 else "", "size": 5, "hover": "step {x:,}: {y:.4f}"}
        series.append(Line(steps, losses, run.colour, short_name(name), dash=run.dash, **style))  # type: ignore[arg-type]
        rows += [{"run": name, "step": step, title: float(loss)} for step, loss in points]
    if not series:
        return None
    label = f"{title.capitalize()} over the steps of {len(series)} run{'s' * (len(series) > 1)}."
    return _page_figure(key, title, label, series, rows, f"{title} (nats)")


def _score_figure(runs: Sequence[_Run], score: str) -> PageFigure | None:
    title = score_name(score)
    series: list[Series] = []
    rows: list[dict[str, Any]] = []
    shown = []
    for run in runs:
        curves = run.curves(score)
        of_step: dict[int, list[float]] = {}
        for step, value in (point for points in curves.values() for point in points):
            if value is not None:
                of_step.setdefault(step, []).append(value)
        if of_step:
            shown.append((run, curves))
            series += median_and_band(sorted(of_step.items()), run.colour, run.name, run.dash)
    for run, curves in shown:
        for number, points in curves.items():
            if len(shown) == 1:
                hover = f"layer {number}, step {{x:,}}: {{y:.3f}}"
                steps, values = zip(*points, strict=True)
                series.append(Line(steps, values, run.colour, width=0.8, opacity=0.55, hover=hover))
            for step, value in points:
                rows.append({"run": run.name, "stack": run.stack, "layer": number, "step": step, score: value})
    if not shown:
        return None
    label = f"{title.capitalize()} of the layers over the steps of {', '.join(run.name for run, _ in shown)}."
    return _page_figure(score, title, label, series, rows, title)


def _page_figure(
    key: str, title: str, label: str, series: list[Series], rows: list[dict[str, Any]], y: str
) -> PageFigure:
    chart = Figure([Panel(title, series, Axis("step"), Axis(y))], height=280)
    return PageFigure(f"training-{key.replace('_', '-')}", label, chart, rows)
