"""Scores as text, as figures, and as sections of a page.

score_report      per model and stack a table, a verdict and medians, then a legend of the columns
published_report  rows of the published tables
score_figure      symmetry and directionality of all layers and heads, with the level expected by chance
scores_section    the same on a page, a figure per score and a panel per stack
maps_section      every score as a layer × head map
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    distinct_colours,
    stack_colour,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section, stack_name
from attngeo.show.tables import (
    PLAIN,
    STRONG,
    Terminal,
    aligned,
    bar,
    cells,
    colour,
    is_numeric,
    padded,
    without_empty_columns,
)
from attngeo.weights.scoring.score_table import head_nulls, layer_nulls
from attngeo.weights.scoring.verdict import verdicts

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

    from attngeo.weights.scoring.score_table import NullLevel, ScoreTable

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
_BARS = _MEDIANS[:3]  # scores between −1 and 1

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
# Columns that stand above or below a table, also where all others are printed.
_ABOVE = ("model", "stack", "population", "published_model", "caution")


def score_report(table: ScoreTable, frame: pl.DataFrame, terminal: Terminal = PLAIN, every_column: bool = False) -> str:
    """Return rows, the verdict and the medians of each model and stack, then what the columns mean.

    table:        which the verdicts and the medians are about
    frame:        the rows of it to print, optionally with the columns that `compare_with_published` adds
    terminal:     less important columns are left out where a row would be wider
    every_column: print all columns under their own names, however wide
    """
    sections: list[str] = []
    titles: set[str] = set()
    sentences = {(one.model, one.stack): one.sentence for one in verdicts(table.frame, table.model_types)}
    summary = table.summary()
    for (model, stack), part in frame.group_by("model", "stack", maintain_order=True):
        shown = without_empty_columns(part).drop(_ABOVE, strict=False) if every_column else _fitting(part, terminal)
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
            parts = [[row[f"{score}_{part}"] for part in ("median", "q25", "q75")] for score in scores]
            texts = ("-" if None in part else "{:6.3f} [{:6.3f}, {:6.3f}]".format(*part) for part in parts)
            rows.append([f"{row['count']} {row['level']}{'s' * (row['count'] > 1)}", *texts])
        lines = aligned(rows, right=[False] * len(rows[0]))
        if max(map(len, lines)) <= width:
            return lines
        scores.pop()
    return []


def _fitting(part: pl.DataFrame, terminal: Terminal) -> pl.DataFrame:
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
_KEY = (
    Line((), (), GREY, "layer", symbol="circle", group="layers"),
    Points((), (), GREY, "single heads", size=5, group="heads"),
)
# Column, or what its name ends with → how it is called
_NAMES = {
    "self_attending": "self-attending",
    "rank_symmetric": "effective rank, symmetric part",
    "rank_skew": "effective rank, skew part",
    "max_logit": "largest |attention logit|",
}
_ENDINGS = {
    "_rope": " over all offsets",
    "_z": ", z",
    "_p": ", p-value",
    "_repaired": ", re-paired null",
    "_folded": ", norm folded in",
}


def score_name(column: str) -> str:
    """Return how a column of a score table is called in figures.

    >>> score_name("directionality_rope_p")
    'directionality over all offsets, p-value'
    """
    for ending, words in _ENDINGS.items():
        if column.endswith(ending):
            return score_name(column.removesuffix(ending)) + words
    return _NAMES.get(column, column)


def _series(
    rows: pl.DataFrame, score: str, colour: str, label: str = "", dash: str = "-", step: float = 1.0
) -> list[Series]:
    """Return the heads of a stack as dots, those of a layer side by side, and its layers as a line.

    step: distance on the x axis from one layer to the next; layer 0 is at 0
    """
    rows = rows.drop_nulls(score).sort("layer", "head")
    layers, heads = rows.filter(rows["head"].is_null()), rows.drop_nulls("head")
    count = int(heads["head"].max() or 0) + 1  # type: ignore[arg-type]
    beside = ((heads["head"] + 0.5) / count - 0.5) * 0.7
    dots = Points(
        ((heads["layer"] + beside) * step).to_list(),
        heads[score].to_list(),
        colour,
        size=6,
        opacity=0.6,
        hover="{name}: {y:.3f}{detail}",
        names=[f"L{layer}H{head}" for layer, head in heads.select("layer", "head").rows()],
        details=_z_texts(heads, score),
        group="heads",
    )
    line = Line(
        (layers["layer"] * step).to_list(),
        layers[score].to_list(),
        colour,
        label,
        dash=dash,
        symbol="circle",
        hover="layer {x}: {y:.3f}{detail}",
        details=_z_texts(layers, score),
        group="" if label else "layers",
    )
    return [dots, line] if heads.height else [line]


def _z_texts(rows: pl.DataFrame, score: str) -> list[str]:
    """Return what hovering adds to the score of each row: its z, where known."""
    return ["" if z is None else f", z {z:.1f}" for z in rows[f"{score}_z"].to_list()]


def _chance(
    score: str, layers: Iterable[Mapping[str, NullLevel]], heads: Iterable[Mapping[str, NullLevel]]
) -> list[Series]:
    """Return each null of the layers as a band around its mean, and the ends of that of the heads as dotted lines."""
    found: list[Series] = []
    for level in dict.fromkeys(levels[score] for levels in layers if score in levels):
        margin = 1.96 * (level.std or 0.0)
        found.append(Level(level.mean, margin, label="random layers: mean, 95%", group="layer null"))
    for level in dict.fromkeys(levels[score] for levels in heads if score in levels):
        ends = (level.mean - 1.96 * level.std, level.mean + 1.96 * level.std) if level.std else ()
        found += [Level(end, dash=":", label="random heads: 95%", group="head null") for end in ends]
    return found


def score_panels(frame: pl.DataFrame) -> list[Panel]:
    """Return a panel for symmetry and one for directionality, each with all models and stacks."""
    parts = frame.partition_by("model", "stack", maintain_order=True)
    keys = [part.select("model", "stack").row(0) for part in parts]
    last = [int(part["layer"].max()) for part in parts]  # type: ignore[arg-type]
    relative = len(set(last)) > 1  # models of different depth are drawn over each other, from first layer to last
    colours = distinct_colours([stack for _, stack in keys])
    x = Axis("depth: first layer 0, last layer 1", grid=False) if relative else Axis("layer", whole=True, grid=False)
    panels = []
    for score, note in _NOTES.items():
        series: list[Series] = []
        for at, (part, (model, stack)) in enumerate(zip(parts, keys, strict=True)):
            label = "  ".join(dict.fromkeys([short_name(model), stack]))
            step = 1 / max(last[at], 1) if relative else 1.0
            series += _series(part, score, colours[at], label, _DASHES[at // len(COLOURS) % 3], step)
        series += _chance(score, layer_nulls(frame).values(), head_nulls(frame).values())
        panels.append(Panel(score, [*series, _KEY[1]], x, note=note))
    return panels


def score_figure(frame: pl.DataFrame) -> Drawing:
    """Draw the symmetry and the directionality of each layer (lines) and head (dots), one colour per model and stack.

    frame: columns as in `ScoreTable.frame`, of one or several models

    The mean of the null of the layers is a grey line, its central 95% a grey band; the central 95% of the null of the
    heads lies between dotted lines.
    """
    return drawn(Figure(score_panels(frame), columns=2))


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


def scores_section(frame: pl.DataFrame) -> Section:
    """Return a figure per score, with one panel per model and stack.

    frame: columns as in `ScoreTable.frame`

    >>> section = scores_section(attngeo.score(attngeo.bundled("encoder")).frame)
    >>> [figure.id for figure in section.figures]
    ['scores-symmetry', 'scores-directionality']
    """
    scores = [name for kind in _SCORES for name in (kind, f"{kind}_rope")]
    shown = [score for score in scores if frame[score].null_count() < frame.height]
    rotary = any(score.endswith("_rope") for score in shown)
    figures = tuple(_page_figure(frame, score) for score in shown)
    return Section("scores", "Scores by layer", _SCORES_READING + _ROTARY_READING * rotary, figures)


def _page_figure(frame: pl.DataFrame, score: str) -> PageFigure:
    panels: list[Panel] = []
    rows, models = [], []
    nulls = layer_nulls(frame), head_nulls(frame)
    for part in frame.partition_by("model", "stack", maintain_order=True):
        part = part.drop_nulls(score).sort("layer", "head")
        if part.height == 0:
            continue
        model, stack = part.select("model", "stack").row(0)
        layers, heads = (levels.get((model, stack), {}) for levels in nulls)
        x = Axis("layer", whole=True, range=(-0.5, int(part["layer"].max()) + 0.5))  # type: ignore[arg-type]
        series = [*_chance(score, [layers], [heads]), *_series(part, score, stack_colour(stack))]
        title = stack_name(model, stack)
        panels.append(Panel(title, series if panels else [*series, *_KEY], x, Axis(score_name(score))))
        models.append(short_name(model))
        for row in part.select("model", "stack", "layer", "head", score, f"{score}_z").rows(named=True):
            level = (layers if row["head"] is None else heads).get(score)
            rows.append(row | {"chance_mean": level and level.mean, "chance_std": level and level.std})
    name = score_name(score)
    label = f"{name.capitalize()} of each layer and head of {', '.join(models)}, with chance levels."
    chart = Figure(panels, columns=2 if len(panels) > 2 else 1, same="y")
    return PageFigure(f"scores-{score.replace('_', '-')}", label, chart, rows)


_MAPS_READING = (
    "Each cell is one head: layers go up, the heads of a layer lie side by side. Blue is below 0 and red above 0; "
    "scores that cannot be negative go from dark to bright. The list above the map selects the score, and a click "
    "on a cell selects the head."
)
_SCALES = "Each map has a colour scale of its own."
_GAPS = "A cross marks a cell without a head."
_UNDEFINED = "An empty cell is a head without a score, because its query, its key or their product is zero."
# Columns in the order of the list: the scores, how far they are from chance, their controls.
_COMPARED = ("symmetry", "symmetry_rope", "directionality", "directionality_rope", "dominance", "self_attending")
_CONTROLS = (("_z", "_p"), ("_repaired",), ("_folded",))
_MAPS = (
    *(*_COMPARED, "rank_symmetric", "rank_skew", "norm"),
    *(score + ending for endings in _CONTROLS for score in _COMPARED for ending in endings),
)


def maps_section(frame: pl.DataFrame) -> Section:
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
        shown = [score for score in _MAPS if score in part.columns and part[score].null_count() < part.height]
        panel = map_panel(stack_name(model, stack), part, {score: score_name(score) for score in shown})
        gaps |= not isinstance(panel.series[-1], Heatmap)
        rows = part.select("model", "stack", "layer", "head", *shown).rows(named=True)
        label = f"Scores of each head of {short_name(model)}, {stack}, as a layer by head map."
        figures.append(PageFigure(f"maps-{number}", label, map_figure(panel), rows))
    undefined = any(part["symmetry"].null_count() for part in parts)
    readings = [_MAPS_READING, *[_SCALES] * (len(parts) > 1), *[_GAPS] * gaps, *[_UNDEFINED] * undefined]
    return Section("maps", "Layer × head maps", " ".join(readings), tuple(figures))


def map_figure(panel: Panel) -> Figure:
    """Return a page's figure of layer × head maps, as high as there are layers, with a list to choose one from."""
    maps = [series for series in panel.series if isinstance(series, Heatmap)]
    return Figure([panel], height=min(560, max(200, 22 * len(maps[0].values))), choice=len(maps) > 1)


def map_panel(title: str, rows: pl.DataFrame, names: Mapping[str, str]) -> Panel:
    """Return columns of a table as layer × head maps, one over the other.

    rows:  of heads, or of layers where there are no heads
    names: column → its name

    The colours of a score with a sign are symmetric about 0. Crosses mark the cells without a head; without them such a
    cell looks like a score of 0.
    """
    rows = rows if rows["head"].null_count() == rows.height else rows.drop_nulls("head")
    layers, heads = rows["layer"].to_numpy(), rows["head"].fill_null(0).to_numpy()
    shape = int(layers.max()) + 1, int(heads.max()) + 1
    labels: list[list[str | None]] = [[None] * shape[1] for _ in range(shape[0])]
    for layer, head in zip(layers.tolist(), heads.tolist(), strict=True):
        labels[layer][head] = f"L{layer}H{head}"
    series: list[Series] = []
    for column, name in names.items():
        values: Floats = np.full(shape, np.nan)
        values[layers, heads] = rows[column].cast(float).fill_null(np.nan).to_numpy()
        known = values[np.isfinite(values)]
        top = float(np.abs(known).max(initial=0.0)) or 1.0  # so that the colours still say where 0 is
        limits, colours = (-top, top), DIVERGING
        if column.startswith(("rank", "norm")) or column.endswith("_p") or column == "change":  # without a sign
            limits, colours = (float(known.min(initial=0.0)), top), SEQUENTIAL
        style = {"bar": Bar(), "gap": True, "hover": "{name}: {z:.4~g}", "names": labels}
        series.append(Heatmap(values, limits, colours, name, **style))  # type: ignore[arg-type]
    gaps = [(head, layer) for layer, row in enumerate(labels) for head, name in enumerate(row) if name is None]
    if gaps:
        x, y = zip(*gaps, strict=True)
        series.append(Points(x, y, GREY, symbol="x", size=5, hover="no head"))
    return Panel(title, series, Axis("head", whole=True), Axis("layer", whole=True, range=(-0.5, shape[0] - 0.5)))
