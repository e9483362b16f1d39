"""Training runs: their losses, and the scores of their layers over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from attngeo.io.names import short_name
from attngeo.show.canvas import COLOURS, STACK_COLOURS
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    Panel,
    Trace,
    axis,
    columns,
    escaped,
    figure,
    in_lines,
    rounded,
    rounded_number,
    with_opacity,
)
from attngeo.show.training_curves import record_layers

if TYPE_CHECKING:
    from attngeo.training.monitoring.records import Record

READING = (
    "Each curve belongs to one run. Of the scores, the line is the median layer and the band reaches from the "
    "lowest to the highest layer; thin lines are single layers where there is only one run."
)
# Key of a record → title
SCORES = {
    "symmetry": "symmetry",
    "symmetry_rope": "symmetry over all offsets",
    "directionality": "directionality",
    "dominance": "dominance",
    "self_attending": "self-attending",
    "max_logit": "largest |attention logit|",
}
LOSSES = {"eval_loss": "held-out loss", "loss": "training loss"}
_SPARE = tuple(colour for colour in COLOURS[:-1] if colour not in (STACK_COLOURS["encoder"], STACK_COLOURS["decoder"]))
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class _Series:
    """One stack of one run: its name, its colour, and the values of its layers by step."""

    name: str
    stack: str
    colour: str
    dash: str
    records: Sequence[Record]

    def layers(self) -> list[int]:
        return sorted(
            {number for record in self.records for stack, number in record_layers(record) if stack == self.stack}
        )

    def points(self, score: str, number: int) -> list[tuple[int, float | None]]:
        """Return step and score of one layer; a value that was not measured is None."""
        found = []
        for record in self.records:
            layers = record_layers(record)
            if record.get(score) and (self.stack, number) in layers:
                found.append((record["step"], record[score][layers.index((self.stack, number))]))
        return found

    def values(self, score: str) -> list[tuple[int, list[float]]]:
        """Return the steps at which a score was measured, with the values of all layers that have one."""
        found: dict[int, list[float]] = {}
        for number in self.layers():
            for step, value in self.points(score, number):
                if value is not None:
                    found.setdefault(step, []).append(value)
        return sorted(found.items())


def training_section(training: Mapping[str, Sequence[Record]], *, id: str = "training") -> Section:
    """Return a figure per loss and score that the records of some run hold.

    training: the name of each run and its records, as `attngeo.Monitor`, `attngeo track` or `attngeo pretrain` write
              them

    >>> section = training_section({name: attngeo.training.bundled_records(name) for name in ("encoder", "decoder")})
    >>> [figure.id for figure in section.figures]
    ['training-eval-loss', 'training-symmetry', 'training-directionality', 'training-max-logit']
    """
    figures = []
    series = _series(training)
    for key, title in LOSSES.items():
        traces = [trace for name, records in training.items() if (trace := _loss(name, records, key, series))]
        if traces:
            figures.append(_loss_figure(training, key, title, traces, id))
    for score, title in SCORES.items():
        if any(one.values(score) for one in series):
            figures.append(_score_figure(series, score, title, id))
    return Section(id, "Training", READING, tuple(figures))


def _series(training: Mapping[str, Sequence[Record]]) -> list[_Series]:
    """Return all stacks of all runs; the first encoder is blue and the first decoder orange."""
    found: list[_Series] = []
    used: dict[str, int] = {}
    for name, records in training.items():
        for stack in dict.fromkeys(stack for record in records for stack, _ in record_layers(record)):
            kind = stack or next((known for known in ("encoder", "decoder") if known in name), "")
            before = used[kind] = used.get(kind, -1) + 1
            colour = STACK_COLOURS.get(kind) or _SPARE[(len(found) + before) % len(_SPARE)]
            title = ", ".join(filter(None, (short_name(name), "" if stack in name else stack)))
            found.append(_Series(title, stack, colour, _DASHES[before % len(_DASHES)], records))
    return found


def _loss(name: str, records: Sequence[Record], key: str, series: Sequence[_Series]) -> Trace | None:
    points = [(record["step"], record[key]) for record in records if isinstance(record.get(key), (int, float))]
    if not points:
        return None
    own = next((one for one in series if one.records is records), None)
    steps, losses = zip(*points, strict=True)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) < 30 else "lines",
        "x": list(steps),
        "y": rounded(losses),
        "line": {"color": own.colour if own else COLOURS[0], "width": 2, "dash": own.dash if own else "solid"},
        "marker": {"size": 5},
        "hovertemplate": "step %{x:,}: %{y:.4f}",
        "name": in_lines(short_name(name)),
    }


def _loss_figure(
    training: Mapping[str, Sequence[Record]], key: str, title: str, traces: list[Trace], id: str
) -> PageFigure:
    rows = (
        {"run": name, "step": record["step"], title: rounded_number(record[key])}
        for name, records in training.items()
        for record in records
        if isinstance(record.get(key), (int, float))
    )
    panel = Panel(title, traces, axis("step"), axis(f"{title} (nats)"))
    label = f"{title.capitalize()} over the steps of {len(traces)} run{'s' * (len(traces) > 1)}."
    return PageFigure(f"{id}-{key.replace('_', '-')}", label, figure([panel], height=280), columns(rows))


def _score_figure(series: Sequence[_Series], score: str, title: str, id: str) -> PageFigure:
    traces: list[Trace] = []
    rows: list[dict[str, Any]] = []
    measured = [one for one in series if one.values(score)]
    for one in measured:
        traces += _median_and_band(one, score)
        if len(measured) == 1:
            traces += [_layer_line(one, score, number) for number in one.layers()]
        for number in one.layers():
            rows += [
                {"run": one.name, "stack": one.stack, "layer": number, "step": step, score: rounded_number(value)}
                for step, value in one.points(score, number)
            ]
    panel = Panel(title, traces, axis("step"), axis(title))
    label = f"{title.capitalize()} of the layers over the steps of {', '.join(one.name for one in measured)}."
    return PageFigure(f"{id}-{score.replace('_', '-')}", label, figure([panel], height=280), columns(rows))


def _median_and_band(one: _Series, score: str) -> list[Trace]:
    """Return the range of the layers as a band, and their median as a line."""
    steps, values = zip(*one.values(score), strict=True)
    low, high = rounded([min(some) for some in values]), rounded([max(some) for some in values])
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": [*steps, *reversed(steps)],
        "y": [*low, *reversed(high)],
        "fill": "toself",
        "fillcolor": with_opacity(one.colour, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": escaped(one.name),
        "showlegend": False,
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(steps) < 30 else "lines",
        "x": list(steps),
        "y": rounded([median(some) for some in values]),
        "line": {"color": one.colour, "width": 2.4, "dash": one.dash},
        "marker": {"size": 5},
        "hovertemplate": "step %{x:,}, median layer: %{y:.3f}",
        "legendgroup": escaped(one.name),
        "name": in_lines(one.name),
    }
    return [band, line]


def _layer_line(one: _Series, score: str, number: int) -> Trace:
    points = one.points(score, number)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [step for step, _ in points],
        "y": rounded([value for _, value in points]),
        "line": {"color": one.colour, "width": 0.8},
        "opacity": 0.55,
        "hovertemplate": f"layer {number}, step %{{x:,}}: %{{y:.3f}}<extra></extra>",
        "showlegend": False,
    }
