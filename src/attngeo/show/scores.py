"""Scores as text, as figures, and as sections of a page.

score_report      per model and stack a table, a verdict and medians, then a legend of the columns
published_report  rows of the published tables
score_figure      symmetry and directionality of all layers and heads, with the level expected by chance
scores_section    the same on a page, a figure per score and a panel per stack
maps_section      every score as a layer × head map
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats
from attngeo.charts import (
    COLOURS,
    DIVERGING,
    GREY,
    SEQUENTIAL,
    Axis,
    Bar,
    Figure,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Series,
    colour_limit,
    distinct_colours,
    stack_colour,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page.section import PageFigure, Section, columns, stack_name
from attngeo.show.tables import aligned, cells, is_numeric, padded, without_empty_columns
from attngeo.show.terminal import PLAIN, STRONG, Terminal, bar, colour

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

    from attngeo.weights.scoring.score_table import LayerNulls
    from attngeo.weights.scoring.verdict import Verdict

SCORE_LEGEND = (
    "symmetry: 1 for a symmetric form, −1 for a skew-symmetric one, 1/d on average for random weights",
    "directionality: below 0 columns (the context token) dominate, above 0 rows (the predicted token)",
)

# Titles of columns, or what their names end with → their meaning.
_MEANINGS = {
    ("symmetry",): SCORE_LEGEND[0].partition(": ")[2],
    ("symmetry_rope",): "symmetry averaged over all offsets between two tokens; symmetry is that at offset 0",
    ("directionality",): SCORE_LEGEND[1].partition(": ")[2],
    ("directionality_rope",): "directionality averaged over all offsets between two tokens",
    ("dominance",): "below 0 column norms are more unequal than row norms, above 0 less",
    ("self_attending",): "above 0 tokens attend to tokens like themselves, below 0 to tokens unlike themselves",
    ("rank_symmetric", "rank_skew"): "effective ranks of the symmetric and of the skew-symmetric part",
    ("z", "_z"): "standard deviations above the mean for independent Gaussian weights of the same shape",
    ("_chance", "_chance_std"): "mean and standard deviation of the score for the same Gaussian weights",
    ("_p",): "two-sided p-value against the same Gaussian weights",
    ("_repaired",): "a control, the same queries with keys of another key head or layer",
    ("_folded",): "the score with the normalisation before the attention folded into the weights",
    ("published", "_published"): "the score in the tables of arXiv 2502.10927",
    ("norm",): "Frobenius norm of the form",
    ("query_width", "key_width", "rank"): "the form is query_width × key_width and has at most this rank",
    ("qk_norm",): "queries and keys are normalised before their product",
    ("cross",): "the row belongs to cross-attention",
    ("rotary",): "queries and keys are rotated by their positions; not proved: how is unknown, so no score uses it",
}


def legend(titles: Collection[str]) -> list[str]:
    """Return a line for each meaning that some of the titles have, in a fixed order."""
    lines = []
    for names, meaning in _MEANINGS.items():
        shown = [name for name in names if name in titles]
        endings = [f"…{name}" for name in names if name[0] == "_" and any(title.endswith(name) for title in titles)]
        if shown or endings:
            lines.append(f"{', '.join(shown + endings)}: {meaning}")
    return lines


_SCORES = ("symmetry", "directionality")
_MEDIANS = ("symmetry", "symmetry_rope", "directionality", "dominance")
_BARS = ("symmetry", "symmetry_rope", "directionality")  # scores between −1 and 1

# Column → its title and its rank; a table that is too wide loses the columns of the highest rank first.
_COLUMNS = {
    "layer": ("layer", 0),
    "head": ("head", 0),
    "symmetry": ("symmetry", 0),
    "symmetry_z": ("z", 1),
    "symmetry_published": ("published", 0),
    "symmetry_rope": ("symmetry_rope", 0),
    "symmetry_rope_z": ("z", 1),
    "directionality": ("directionality", 0),
    "directionality_z": ("z", 3),
    "directionality_published": ("published", 0),
    "dominance": ("dominance", 2),
    "dominance_z": ("z", 3),
}


def score_report(
    frame: pl.DataFrame,
    summary: pl.DataFrame,
    verdicts: Sequence[Verdict],
    terminal: Terminal = PLAIN,
    every_column: bool = False,
) -> str:
    """Return the rows, the verdict and the medians of each model and stack, then what the columns mean.

    frame:        columns as in `ScoreTable.frame`, optionally with those that `compare_with_published` adds
    summary:      as `ScoreTable.summary` returns it
    verdicts:     as `verdicts` returns them
    terminal:     less important columns are left out where a row would be wider
    every_column: print all columns under their own names, however wide
    """
    sections: list[str] = []
    titles: set[str] = set()
    sentences = {(verdict.model, verdict.stack): verdict.sentence for verdict in verdicts}
    for part in frame.partition_by("model", "stack", maintain_order=True):
        model, stack = part.select("model", "stack").row(0)
        shown = _all_columns(part) if every_column else _fitting_columns(part, terminal)
        titles |= set(shown.columns if every_column else (_COLUMNS[name][0] for name in shown.columns))
        verdict = [terminal.paint(line, STRONG) for line in wrap(sentences.get((model, stack), ""), terminal.width)]
        medians = _median_lines(summary.filter(summary["model"] == model, summary["stack"] == stack), terminal.width)
        paragraphs = [
            [f"{model}  {stack}", *_table_lines(shown, terminal, every_column), *_notes(part, every_column)],
            [*verdict, *medians],
        ]
        sections += ["\n".join(lines) + "\n" for lines in paragraphs if lines]
    return "\n".join([*sections, *legend(titles), ""])


def published_report(frame: pl.DataFrame) -> str:
    """Return rows of the published tables, as `list_published` returns them, then what the columns mean.

    Modality and family stand above the models of a family, and cautions are numbered, so that rows stay narrow.
    """
    cautions: list[str] = frame["caution"].drop_nulls().unique(maintain_order=True).to_list()
    shown = ["hub_id", "stack", *(name for name in ("layers", "layer") if name in frame.columns), *_SCORES]
    titles = [*shown, "size", *(["note"] if cautions else [])]
    rows = [
        [*texts, _size(count), *([f"[{cautions.index(caution) + 1}]" if caution else ""] if cautions else [])]
        for texts, count, caution in zip(cells(frame.select(shown)), frame["parameters"], frame["caution"], strict=True)
    ]
    title, *lines = aligned([titles, *rows], right=[*is_numeric(frame.select(shown)), True, False][: len(titles)])
    families = list(frame.select("modality", "family").iter_rows())
    for i in reversed(range(len(families))):
        if i == 0 or families[i] != families[i - 1]:
            lines.insert(i, "  ".join(families[i]))
    text = [title, *lines, "", *SCORE_LEGEND]
    if "layers" in shown:
        text.append("layers: number of layers in the stack; the scores are medians over them")
    text.append("size: number of parameters")
    if cautions:
        text.append("note: a caution, why the published scores are not those of the model")
        text += [f"[{i}] {caution}" for i, caution in enumerate(cautions, 1)]
    return "\n".join([*text, ""])


def _size(parameters: int) -> str:
    """Return a number of parameters in millions or billions, in at most four characters."""
    if parameters < 999.5e6:
        return f"{parameters / 1e6:.0f}M"
    return f"{parameters / 1e9:.{1 if parameters < 9.95e9 else 0}f}B"


def _median_lines(summary: pl.DataFrame, width: int) -> list[str]:
    """Return one line for the layers and one for the heads of a stack: median [quartiles] of the scores that fit."""
    scores = [score for score in _MEDIANS if f"{score}_median" in summary.columns]
    scores = [score for score in scores if summary[f"{score}_median"].null_count() < summary.height]
    while scores:
        rows = [["median [quartiles]", *scores]]
        for row in summary.iter_rows(named=True):
            quartiles = (_quartiles(*(row[f"{score}_{part}"] for part in ("median", "q25", "q75"))) for score in scores)
            rows.append([f"{row['count']} {row['level']}{'s' if row['count'] > 1 else ''}", *quartiles])
        lines = aligned(rows, right=[False] * len(rows[0]))
        if max(map(len, lines)) <= width:
            return lines
        scores.pop()
    return []


def _quartiles(median: float | None, low: float | None, high: float | None) -> str:
    return "-" if median is None else f"{median:6.3f} [{low:6.3f}, {high:6.3f}]"


def _all_columns(part: pl.DataFrame) -> pl.DataFrame:
    """Return all columns with values; model and stack stand above the table, `--published` repeats its notes."""
    return without_empty_columns(part).drop("model", "stack", "population", "published_model", "caution", strict=False)


def _fitting_columns(part: pl.DataFrame, terminal: Terminal) -> pl.DataFrame:
    """Return the columns to show: those with values, less the least important ones until the rows fit the terminal."""
    part = without_empty_columns(part.select(name for name in _COLUMNS if name in part.columns))
    for rank in (3, 2, 1):
        if max(map(len, _table_lines(part, Terminal(terminal.width)))) <= terminal.width:
            break
        part = part.select(name for name in part.columns if _COLUMNS[name][1] < rank)
    return part


def _table_lines(part: pl.DataFrame, terminal: Terminal, own_names: bool = False) -> list[str]:
    """Return a line of titles and a line per row, with bars where there is room for them, and with colours."""
    titles = part.columns if own_names else [_COLUMNS[name][0] for name in part.columns]
    rows = padded([titles, *cells(part)], right=is_numeric(part))
    if terminal.bars and not own_names:
        barred = [list(row) for row in rows]
        for column, name in enumerate(part.columns):
            if name in _BARS:
                barred[0][column] = titles[column].ljust(13)
                for row, value in zip(barred[1:], part[name], strict=True):
                    row[column] = f"{row[column].strip():>6} {bar(value)}".ljust(len(barred[0][column]))
        if max(len("  ".join(row)) for row in barred) <= terminal.width:
            rows = barred
    if terminal.colours:
        for column, name in enumerate(part.columns):
            if f"{name}_z" not in part.columns and name not in _SCORES:
                continue
            z = part[f"{name}_z"] if f"{name}_z" in part.columns else [None] * part.height
            for row, value, distance in zip(rows[1:], part[name], z, strict=True):
                row[column] = terminal.paint(row[column], colour(value, distance))
    return ["  ".join(row).rstrip() for row in rows]


def _notes(part: pl.DataFrame, every_column: bool) -> list[str]:
    """Return what holds for all rows of a stack, to be printed once below them."""
    notes = []
    if every_column:
        empty = [name for name in part.columns if name != "head" and part[name].null_count() == part.height]
        if empty:
            notes += wrap(f"without values: {', '.join(empty)}", 100)
    if part["qk_norm"].any():
        notes.append("Queries and keys are normalised before their product: the form is only part of the score")
    if "population" in part.columns:
        if part["published_model"].null_count() < part.height:
            notes.append(f"published: {part['published_model'].drop_nulls()[0]}")
        notes.extend(f"caution: {text}" for text in part["caution"].drop_nulls().unique(maintain_order=True))
        if part["population"][0] is not None:
            percentiles = [
                f"{score} {part[f'model_{score}_percentile'][0]:.0f}"
                for score in _SCORES
                if part[f"model_{score}_percentile"][0] is not None
            ]
            notes.append(f"percentile of the median layer among {part['population'][0]}: {', '.join(percentiles)}")
    return notes


# Figures. The same series stand in one panel on paper and in a panel per stack on a page.

_NOTES = {"symmetry": "1 symmetric, −1 skew", "directionality": "below 0 columns dominate, above 0 rows"}
_DASHES = ("-", "--", ":")  # the next one when all colours are used
_LAYERS_NULL, _HEADS_NULL = "random layers: mean, 95%", "random heads: 95%"
_KEY = (
    Line((), (), GREY, "layer", symbol="circle", group="layers"),
    Points((), (), GREY, "single heads", size=5, group="heads"),
)


@dataclass(frozen=True)
class _Stack:
    """One stack of one model, and how it is drawn."""

    rows: pl.DataFrame
    colour: str
    dash: str = "-"
    step: float = 1.0  # distance on the x axis from one layer to the next; layer 0 is at 0

    @property
    def key(self) -> tuple[str, str]:
        """Model and stack."""
        return self.rows["model"][0], self.rows["stack"][0]

    def series(self, score: str, label: str = "") -> list[Series]:
        """Return the heads as dots, those of a layer side by side, and the layers as a line."""
        import polars as pl

        rows = self.rows.drop_nulls(score).sort("layer", "head")
        layers, heads = rows.filter(pl.col("head").is_null()), rows.drop_nulls("head")
        count = int(heads["head"].max() or 0) + 1  # type: ignore[arg-type]
        beside = ((heads["head"] + 0.5) / count - 0.5) * 0.7
        dots = Points(
            ((heads["layer"] + beside) * self.step).to_list(),
            heads[score].to_list(),
            self.colour,
            size=6,
            opacity=0.6,
            hover="{name}: {y:.3f}{detail}",
            names=[f"L{layer}H{head}" for layer, head in heads.select("layer", "head").rows()],
            details=_z_texts(heads, score),
            group="heads",
        )
        line = Line(
            (layers["layer"] * self.step).to_list(),
            layers[score].to_list(),
            self.colour,
            label,
            dash=self.dash,
            symbol="circle",
            hover="layer {x}: {y:.3f}{detail}",
            details=_z_texts(layers, score),
            group="" if label else "layers",
        )
        return [dots, line] if heads.height else [line]


def _z_texts(rows: pl.DataFrame, score: str) -> list[str]:
    """Return what hovering adds to the score of each row: its z, where known."""
    return ["" if z is None else f", z {z:.1f}" for z in rows[f"{score}_z"].to_list()]


def _chance(score: str, stacks: Iterable[_Stack], layers: LayerNulls, heads: LayerNulls) -> list[Series]:
    """Return each null of the layers as a band around its mean, and the ends of that of the heads as dotted lines."""
    keys = [stack.key for stack in stacks]
    of_heads = [stack.key for stack in stacks if stack.rows["head"].null_count() < stack.rows.height]
    found: list[Series] = []
    for level in dict.fromkeys(layers[key][score] for key in keys if score in layers.get(key, {})):
        found.append(Level(level.mean, 1.96 * (level.std or 0.0), label=_LAYERS_NULL, group="layer null"))
    for level in dict.fromkeys(heads[key][score] for key in of_heads if score in heads.get(key, {})):
        ends = (level.mean - 1.96 * level.std, level.mean + 1.96 * level.std) if level.std else ()
        found += [Level(end, dash=":", label=_HEADS_NULL, group="head null") for end in ends]
    return found


def score_panels(frame: pl.DataFrame, layers: LayerNulls, heads: LayerNulls) -> list[Panel]:
    """Return a panel for symmetry and one for directionality, each with all models and stacks."""
    parts = frame.partition_by("model", "stack", maintain_order=True)
    last = [int(part["layer"].max()) for part in parts]  # type: ignore[arg-type]
    relative = len(set(last)) > 1  # models of different depth are drawn over each other, from first layer to last
    colours = distinct_colours([part["stack"][0] for part in parts])
    stacks = [
        _Stack(part, colours[at], _DASHES[at // len(COLOURS) % 3], 1 / max(last[at], 1) if relative else 1.0)
        for at, part in enumerate(parts)
    ]
    x = Axis("depth: first layer 0, last layer 1", grid=False) if relative else Axis("layer", whole=True, grid=False)
    panels = []
    for score, note in _NOTES.items():
        series: list[Series] = []
        for stack in stacks:
            series += stack.series(score, "  ".join(dict.fromkeys([short_name(stack.key[0]), stack.key[1]])))
        panels.append(Panel(score, [*series, *_chance(score, stacks, layers, heads), _KEY[1]], x, note=note))
    return panels


def score_figure(frame: pl.DataFrame, nulls: LayerNulls, head_nulls: LayerNulls | None = None) -> Drawing:
    """Draw the symmetry and the directionality of each layer (lines) and head (dots), one colour per model and stack.

    frame:      columns as in `ScoreTable.frame`, of one or several models
    nulls:      the null of the layers of each stack; its mean is a grey line, its central 95% a grey band
    head_nulls: the null of the heads; its central 95% lies between dotted lines
    """
    return drawn(Figure(score_panels(frame, nulls, head_nulls or {}), columns=2))


_SCORES_READING = (
    "The line joins the layers of a stack, and each dot is one head. 1 means symmetric and −1 skew-symmetric; a "
    "negative directionality means that columns (the context token) dominate, a positive one that rows (the "
    "predicted token) do. The grey band holds 95% of layers with random weights, the space between the dotted lines "
    "95% of such heads: what lies outside is unlikely to be chance."
)
_ROTARY_READING = (
    " Queries and keys of this model are rotated by their positions: “over all offsets” averages over all offsets "
    "(position of the key minus that of the query), the plain score is that at offset 0."
)
# Column → title
TITLES = {
    "symmetry": "symmetry",
    "symmetry_rope": "symmetry over all offsets",
    "directionality": "directionality",
    "directionality_rope": "directionality over all offsets",
}


def scores_section(frame: pl.DataFrame, layers: LayerNulls, heads: LayerNulls, *, id: str = "scores") -> Section:
    """Return a figure per score, with one panel per model and stack.

    frame:  columns as in `ScoreTable.frame`
    layers: the nulls of the layers, as `layer_nulls` returns them
    heads:  the nulls of the heads, as `head_nulls` returns them

    >>> from attngeo.weights.scoring import head_nulls, layer_nulls
    >>> frame = attngeo.score(attngeo.bundled("encoder")).frame
    >>> section = scores_section(frame, layer_nulls(frame), head_nulls(frame))
    >>> [figure.id for figure in section.figures]
    ['scores-symmetry', 'scores-directionality']
    """
    shown = [score for score in TITLES if frame[score].null_count() < frame.height]
    figures = tuple(_score_figure(frame, score, layers, heads, id) for score in shown)
    rotary = any(score.endswith("_rope") for score in shown)
    return Section(id, "Scores by layer", _SCORES_READING + _ROTARY_READING * rotary, figures)


def _score_figure(frame: pl.DataFrame, score: str, layers: LayerNulls, heads: LayerNulls, id: str) -> PageFigure:
    panels: list[Panel] = []
    rows, models = [], []
    for part in frame.partition_by("model", "stack", maintain_order=True):
        part = part.drop_nulls(score).sort("layer", "head")
        if part.height == 0:
            continue
        stack = _Stack(part, stack_colour(part["stack"][0]))
        x = Axis("layer", whole=True, range=(-0.5, int(part["layer"].max()) + 0.5))  # type: ignore[arg-type]
        series = [*_chance(score, [stack], layers, heads), *stack.series(score), *(() if panels else _KEY)]
        panels.append(Panel(stack_name(*stack.key), series, x, Axis(TITLES[score])))
        models.append(short_name(stack.key[0]))
        levels = [nulls.get(stack.key, {}).get(score) for nulls in (layers, heads)]
        for row in part.select("model", "stack", "layer", "head", score, f"{score}_z").iter_rows(named=True):
            level = levels[row["head"] is not None]
            rows.append(row | {"chance_mean": level and level.mean, "chance_std": level and level.std})
    label = f"{TITLES[score].capitalize()} of each layer and head of {', '.join(models)}, with chance levels."
    chart = Figure(panels, columns=2 if len(panels) > 2 else 1, same="y")
    return PageFigure(f"{id}-{score.replace('_', '-')}", label, chart, columns(rows))


_MAPS_READING = (
    "Each cell is one head: layers go up, the heads of a layer lie side by side. Blue is below 0 and red above 0; "
    "scores that cannot be negative go from dark to bright. The list above the map selects the score, and a click "
    "on a cell selects the head."
)
_SCALES = "Each map has a colour scale of its own."
_GAPS = "A cross marks a cell without a head."
_UNDEFINED = "An empty cell is a head without a score, because its query, its key or their product is zero."
# Column → name and whether it has a sign.
_MAPS = {
    "symmetry": ("symmetry", True),
    "symmetry_rope": ("symmetry over all offsets", True),
    "directionality": ("directionality", True),
    "directionality_rope": ("directionality over all offsets", True),
    "dominance": ("dominance", True),
    "self_attending": ("self-attending", True),
    "rank_symmetric": ("effective rank, symmetric part", False),
    "rank_skew": ("effective rank, skew part", False),
    "norm": ("norm", False),
    "symmetry_z": ("symmetry, z", True),
    "symmetry_rope_z": ("symmetry over all offsets, z", True),
    "directionality_z": ("directionality, z", True),
    "directionality_p": ("directionality, p-value", False),
    "directionality_rope_z": ("directionality over all offsets, z", True),
    "directionality_rope_p": ("directionality over all offsets, p-value", False),
    "dominance_z": ("dominance, z", True),
    "self_attending_z": ("self-attending, z", True),
    "symmetry_repaired": ("symmetry, re-paired null", True),
    "symmetry_rope_repaired": ("symmetry over all offsets, re-paired null", True),
    "directionality_repaired": ("directionality, re-paired null", True),
    "directionality_rope_repaired": ("directionality over all offsets, re-paired null", True),
    "symmetry_folded": ("symmetry, norm folded in", True),
    "directionality_folded": ("directionality, norm folded in", True),
}


def maps_section(frame: pl.DataFrame, *, id: str = "maps") -> Section:
    """Return one map per model and stack, with all scores that its heads have.

    frame: columns as in `ScoreTable.frame`

    >>> section = maps_section(attngeo.score(attngeo.bundled("encoder")).frame)
    >>> [heatmap.label for heatmap in section.figures[0].chart.panels[0].series][:3]
    ['symmetry', 'directionality', 'dominance']
    """
    parts = frame.drop_nulls("head").partition_by("model", "stack", maintain_order=True)
    figures, gaps = [], False
    for number, part in enumerate(parts, 1):
        model, stack = part.select("model", "stack").row(0)
        shown = {score: _MAPS[score] for score in _MAPS if part[score].null_count() < part.height}
        panel = map_panel(stack_name(model, stack), part, shown, Bar())
        gaps |= not isinstance(panel.series[-1], Heatmap)
        table = columns(part.select("model", "stack", "layer", "head", *shown).iter_rows(named=True))
        label = f"Scores of each head of {short_name(model)}, {stack}, as a layer by head map."
        figures.append(PageFigure(f"{id}-{number}", label, map_figure(panel, choice=True), table))
    undefined = any(part["symmetry"].null_count() for part in parts)
    readings = [_MAPS_READING, *[_SCALES] * (len(parts) > 1), *[_GAPS] * gaps, *[_UNDEFINED] * undefined]
    return Section(id, "Layer × head maps", " ".join(readings), tuple(figures))


def map_figure(panel: Panel, choice: bool = False) -> Figure:
    """Return a page's figure of a layer × head map, as high as it has layers."""
    layers = len(panel.series[0].values)  # type: ignore[union-attr]
    return Figure([panel], height=min(560, max(200, 22 * layers)), choice=choice)


def map_panel(title: str, rows: pl.DataFrame, scores: Mapping[str, tuple[str, bool]], bar: Bar | None) -> Panel:
    """Return columns of a table as layer × head maps, one over the other.

    rows:   of heads, or of layers where there are no heads
    scores: column → its name and whether it has a sign; the colours of such a score are symmetric about 0

    Crosses mark the cells without a head; without them such a cell looks like a score of 0.
    """
    rows = rows if rows["head"].null_count() == rows.height else rows.drop_nulls("head")
    layers, heads = rows["layer"].to_numpy(), rows["head"].fill_null(0).to_numpy()
    shape = int(layers.max()) + 1, int(heads.max()) + 1
    names: list[list[str | None]] = [[None] * shape[1] for _ in range(shape[0])]
    for layer, head in zip(layers.tolist(), heads.tolist(), strict=True):
        names[layer][head] = f"L{layer}H{head}"
    series: list[Series] = []
    for column, (name, signed) in scores.items():
        values: Floats = np.full(shape, np.nan)
        values[layers, heads] = rows[column].cast(float).fill_null(np.nan).to_numpy()
        top = colour_limit(values)
        low = -top if signed else float(values[np.isfinite(values)].min(initial=0.0))
        colours = DIVERGING if signed else SEQUENTIAL
        hover = "{name}: {z:.4~g}"
        series.append(Heatmap(values, (low, top), colours, name, bar, gap=True, hover=hover, names=names))
    gaps = [(head, layer) for layer, row in enumerate(names) for head, name in enumerate(row) if name is None]
    if gaps:
        x, y = zip(*gaps, strict=True)
        series.append(Points(x, y, GREY, symbol="x", size=5, hover="no head"))
    return Panel(title, series, Axis("head", whole=True), Axis("layer", whole=True, range=(-0.5, shape[0] - 0.5)))
