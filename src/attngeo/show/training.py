"""Training runs as figures and as a section of a page.

training_figure    the scores of each layer over the steps of one run
training_section   losses, and the median and the range of the layers, of several runs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from attngeo.charts import (
    COLOURS,
    COLUMN,
    PAGE,
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
    shade,
)
from attngeo.errors import InputError
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page.section import PageFigure, Section, columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.training.monitoring.records import Record

# Score → how to read it, in the figure of one run
_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate",
    "max_logit": "largest |attention logit|",
}
# Key of a record → title
_SCORES = {
    "symmetry": "symmetry",
    "symmetry_rope": "symmetry over all offsets",
    "directionality": "directionality",
    "dominance": "dominance",
    "self_attending": "self-attending",
    "max_logit": "largest |attention logit|",
}
_LOSSES = {"eval_loss": "held-out loss", "loss": "training loss"}
_DASHES = ("-", "--", ":", "-.")
_READING = (
    "Each curve belongs to one run. Of the scores, the line is the median layer and the band reaches from the "
    "lowest to the highest layer; thin lines are single layers where there is only one run."
)


@dataclass(frozen=True)
class _Run:
    """One stack of one run, and how it is drawn."""

    name: str
    stack: str  # "" where records do not name it
    records: Sequence[Record]
    colour: str = ""
    dash: str = "-"

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers."""
        found = (zip(*_layers(record), strict=True) for record in self.records)
        return sorted({number for layers in found for stack, number in layers if stack == self.stack})

    def points(self, score: str, number: int) -> list[tuple[int, float | None]]:
        """Return step and score of one layer; a value that was not measured is None."""
        found = []
        for record in self.records:
            layers = list(zip(*_layers(record), strict=True))
            if record.get(score) and (self.stack, number) in layers:
                found.append((record["step"], record[score][layers.index((self.stack, number))]))
        return found

    def values(self, score: str) -> list[tuple[int, list[float]]]:
        """Return the steps at which a score was measured, with the values of all layers that have one."""
        found: dict[int, list[float]] = {}
        for number in self.layers:
            for step, value in self.points(score, number):
                if value is not None:
                    found.setdefault(step, []).append(value)
        return sorted(found.items())


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
    records = [record for record in records if record.get("symmetry")]
    if not records:
        raise InputError("records: none contains scores, so there is nothing to draw")
    names = [name for name in _PANELS if any(name in record for record in records)]
    panels = []
    for stack in (stacks := _stacks(records)):
        run = _Run("", stack, records)
        numbers = run.layers
        span = max(numbers[-1] - numbers[0], 1) / 0.92  # without the yellow end, which is faint on white
        bar = Bar("layer", whole=True)
        for name in names:
            series: list[Series] = [Level(0)] if name == "directionality" else []
            for number in numbers:
                steps, values = zip(*run.points(name, number), strict=True) if run.points(name, number) else ((), ())
                symbol = "circle" if len(steps) < 20 else ""
                colour = shade((number - numbers[0]) / span)
                series.append(Line(steps, values, colour, width=1.8, symbol=symbol, size=5.5))
            if name == names[-1]:
                limits = (numbers[0], numbers[0] + span)
                series.append(Points((), (), shade=(), limits=limits, bar=bar))
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


def training_section(training: Mapping[str, Sequence[Record]], *, id: str = "training") -> Section:
    """Return a figure per loss and score that the records of some run hold.

    training: the name of each run and its records, as `attngeo.Monitor`, `attngeo track` or `attngeo pretrain` write
              them

    >>> section = training_section({name: attngeo.training.bundled_records(name) for name in ("encoder", "decoder")})
    >>> [figure.id for figure in section.figures]
    ['training-eval-loss', 'training-symmetry', 'training-directionality', 'training-max-logit']
    """
    runs = list(_runs(training))
    figures = [_loss_figure(training, key, runs, id) for key in _LOSSES]
    figures += [_score_figure([run for run in runs if run.values(score)], score, id) for score in _SCORES]
    return Section(id, "Training", _READING, tuple(figure for figure in figures if figure is not None))


def _runs(training: Mapping[str, Sequence[Record]]) -> Iterator[_Run]:
    """Yield all stacks of all runs; the first encoder is blue and the first decoder orange."""
    found = [(name, records, stack) for name, records in training.items() for stack in _stacks(records)]
    known = [stack or next((kind for kind in ("encoder", "decoder") if kind in name), "") for name, _, stack in found]
    for at, ((name, records, stack), colour) in enumerate(zip(found, distinct_colours(known), strict=True)):
        title = ", ".join(filter(None, (short_name(name), "" if stack in name else stack)))
        yield _Run(title, stack, records, colour, _DASHES[known[:at].count(known[at]) % len(_DASHES)])


def _loss_figure(
    training: Mapping[str, Sequence[Record]], key: str, runs: Sequence[_Run], id: str
) -> PageFigure | None:
    title = _LOSSES[key]
    series: list[Series] = []
    rows: list[dict[str, Any]] = []
    for name, records in training.items():
        points = [(record["step"], record[key]) for record in records if isinstance(record.get(key), (int, float))]
        if not points:
            continue
        run = next((one for one in runs if one.records is records), _Run("", "", records, COLOURS[0]))
        steps, losses = zip(*points, strict=True)
        symbol = "circle" if len(points) < 30 else ""
        hover = "step {x:,}: {y:.4f}"
        series.append(
            Line(steps, losses, run.colour, short_name(name), dash=run.dash, symbol=symbol, size=5, hover=hover)
        )
        rows += [{"run": name, "step": step, title: float(loss)} for step, loss in points]
    if not series:
        return None
    label = f"{title.capitalize()} over the steps of {len(series)} run{'s' * (len(series) > 1)}."
    chart = Figure([Panel(title, series, Axis("step"), Axis(f"{title} (nats)"))], height=280)
    return PageFigure(f"{id}-{key.replace('_', '-')}", label, chart, columns(rows))


def _score_figure(runs: Sequence[_Run], score: str, id: str) -> PageFigure | None:
    if not runs:
        return None
    title = _SCORES[score]
    series: list[Series] = []
    for run in runs:
        series += median_and_band(run.values(score), run.colour, run.name, run.dash)
        for number in run.layers if len(runs) == 1 else ():
            steps, values = zip(*run.points(score, number), strict=True)
            hover = f"layer {number}, step {{x:,}}: {{y:.3f}}"
            series.append(Line(steps, values, run.colour, width=0.8, opacity=0.55, hover=hover))
    rows = (
        {"run": run.name, "stack": run.stack, "layer": number, "step": step, score: value}
        for run in runs
        for number in run.layers
        for step, value in run.points(score, number)
    )
    label = f"{title.capitalize()} of the layers over the steps of {', '.join(run.name for run in runs)}."
    chart = Figure([Panel(title, series, Axis("step"), Axis(title))], height=280)
    return PageFigure(f"{id}-{score.replace('_', '-')}", label, chart, columns(rows))
