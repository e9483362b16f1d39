"""`ScoreTable`: scores as a tidy table, with one row per layer and one row per head.

`layer_nulls` and `head_nulls` give the chance level of the layers and of the heads of each stack in a table. Figures
draw them as reference lines with a band, and `attngeo demo` prints that of the layers below the scores.
"""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.arguments import file_path
from attngeo.display import draw
from attngeo.errors import InputError, SourceError
from attngeo.io.files import write_errors, write_file
from attngeo.io.tables import parquet_bytes, read_parquet, table_of
from attngeo.weights.scoring.rotary import FREQUENCY_COLUMNS

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

Row = dict[str, Any]  # of a score table: column → value

# The scores that are compared with independent Gaussian factors.
SCORES = ("symmetry", "directionality", "symmetry_rope", "directionality_rope", "dominance", "self_attending")

# Column → polars type; a value is null where it was not requested or does not exist.
COLUMNS = {
    "model": "String",
    "stack": "String",
    "layer": "Int64",
    "head": "Int64",  # null in the rows of layer forms
    "symmetry": "Float64",
    "directionality": "Float64",
    "symmetry_z": "Float64",  # compared with independent Gaussian factors
    "directionality_z": "Float64",
    "directionality_p": "Float64",
    "symmetry_repaired": "Float64",  # the same queries with the keys of another group or layer
    "directionality_repaired": "Float64",
    "symmetry_folded": "Float64",  # with the norm before the attention folded in
    "directionality_folded": "Float64",
    "symmetry_rope": "Float64",  # averaged over all offsets of the rotary position embedding
    "symmetry_rope_z": "Float64",
    "symmetry_rope_repaired": "Float64",
    "directionality_rope": "Float64",
    "directionality_rope_z": "Float64",
    "directionality_rope_p": "Float64",
    "directionality_rope_repaired": "Float64",
    "dominance": "Float64",  # log(CV of row norms / CV of column norms)
    "dominance_z": "Float64",
    "self_attending": "Float64",  # tr M / (√rank ‖M‖)
    "self_attending_z": "Float64",
    "rank_symmetric": "Float64",  # effective rank of the symmetric part
    "rank_skew": "Float64",
    "norm": "Float64",  # ‖M‖
    "query_width": "Int64",
    "key_width": "Int64",
    "rank": "Int64",  # r, or G·r for a layer
    "qk_norm": "Boolean",
    "cross": "Boolean",
    "rotary": "String",  # "yes", "no", or "not proved": then the columns above named rope are null
} | {
    # Mean and standard deviation of each score for independent Gaussian factors of the same shape.
    f"{score}_{what}": "Float64"
    for score in SCORES
    for what in ("chance", "chance_std")
}
# Columns that are printed, as many of those with values as fit beside each other.
SHOWN = ("model", "stack", "layer", "head", "symmetry", "symmetry_rope", "directionality", "dominance",
         "symmetry_z", "symmetry_rope_z", "directionality_z", "dominance_z")  # fmt: skip
MOST_SHOWN = 7
# Keys of the Parquet metadata, whose values are JSON.
NOTES, MODEL_TYPES, FREQUENCIES = "attngeo_notes", "attngeo_model_types", "attngeo_frequencies"


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Symmetry and directionality of the layers and heads of one model, or of several models one after the other.

    >>> table = attngeo.score(attngeo.bundled("encoder"))
    >>> layers = table.frame.filter(table.frame["head"].is_null())
    >>> layers["symmetry"].round(2).to_list()
    [0.61, 0.35, 0.59, 0.63]
    """

    frame: pl.DataFrame  # columns COLUMNS
    notes: tuple[str, ...] = ()  # remarks that a reader of the scores must know
    frequencies: pl.DataFrame | None = None  # columns FREQUENCY_COLUMNS; None where they were not requested
    model_types: Mapping[str, str] = field(default_factory=dict)  # model → type in its config, `diffusers:CLASS` too

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        notes: tuple[str, ...] = (),
        frequencies: Iterable[Row] | None = None,
        model_types: Mapping[str, str] | None = None,
    ) -> ScoreTable:
        """Return a table made of rows; a missing key becomes null."""
        pairs = None if frequencies is None else table_of(frequencies, FREQUENCY_COLUMNS)
        return cls(table_of(rows, COLUMNS), notes, pairs, model_types or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScoreTable) or self.notes != other.notes or not self.frame.equals(other.frame):
            return False
        if self.model_types != other.model_types:
            return False
        if self.frequencies is None or other.frequencies is None:
            return self.frequencies is other.frequencies
        return self.frequencies.equals(other.frequencies)

    def __add__(self, other: ScoreTable) -> ScoreTable:
        """Return the rows of both tables; `frequencies` holds those of every table that has them.

        A row that both have is kept once. InputError where their scores of one layer or head differ.
        """
        import polars as pl

        frame = pl.concat([self.frame, other.frame]).unique(maintain_order=True)
        _check_one_row_each(frame)
        pairs = [table.frequencies for table in (self, other) if table.frequencies is not None]
        notes = tuple(dict.fromkeys(self.notes + other.notes))
        types = {**self.model_types, **other.model_types}
        return ScoreTable(frame, notes, pl.concat(pairs).unique(maintain_order=True) if pairs else None, types)

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        filled = {column.name for column in self.frame if column.null_count() < self.frame.height}
        shown = [name for name in SHOWN if name in filled]
        shown = [name for name in shown if name not in ("model", "stack") or self.frame[name].n_unique() > 1]
        models = ", ".join(self.frame["model"].unique(maintain_order=True).head(3))
        title = f"{models}: {self.frame.height} rows; .frame has all {self.frame.width} columns"
        return "\n".join([title, repr(self.frame.select(shown[:MOST_SHOWN])), *self.notes])

    def _repr_html_(self) -> str:
        return "".join([self.frame._repr_html_(), *(f"<p>{html.escape(note)}</p>" for note in self.notes)])

    def summary(self) -> pl.DataFrame:
        """Return median and quartiles over the layers and over the heads of each stack, without cross-attention."""
        import polars as pl

        kind = pl.when(pl.col("head").is_null()).then(pl.lit("layer")).otherwise(pl.lit("head"))
        levels = {"median": 0.5, "q25": 0.25, "q75": 0.75}
        quantiles = [
            pl.col(score).quantile(level, "linear").alias(f"{score}_{name}")
            for score in ("symmetry", "directionality", "symmetry_rope", "dominance")
            for name, level in levels.items()
        ]
        scored = self.frame.filter(~pl.col("cross") & pl.col("directionality").is_not_null())
        groups = scored.with_columns(kind.alias("level")).group_by("model", "stack", "level", maintain_order=True)
        return groups.agg(pl.len().cast(pl.Int64).alias("count"), *quantiles)

    def plot(self) -> Figure:
        """Draw every layer (line) and head (dots) as a matplotlib figure."""
        return draw("score_figure", self.frame)

    def save(self, path: str | Path) -> Path:
        """Write frame, notes, frequencies and model types to one Parquet file, atomically, and return its path."""
        path = file_path(path)
        if path.suffix != ".parquet":
            raise InputError(f"{path}: a score table is saved as .parquet; use .frame to write other formats")
        with write_errors(path):
            metadata = {NOTES: json.dumps(self.notes), MODEL_TYPES: json.dumps(dict(self.model_types))}
            if self.frequencies is not None:
                metadata[FREQUENCIES] = self.frequencies.write_json()
            write_file(path, parquet_bytes(self.frame, metadata))
        return path

    @classmethod
    def load(cls, path: str | Path) -> ScoreTable:
        """Read a table that `save` wrote."""
        import polars as pl

        try:
            frame, metadata = read_parquet(file_path(path))
            if {name: str(kind) for name, kind in frame.schema.items()} != COLUMNS:
                raise ValueError("the columns are others")
            notes, types = (json.loads(metadata[key]) for key in (NOTES, MODEL_TYPES))
            pairs = pl.read_json(io.StringIO(metadata[FREQUENCIES])) if FREQUENCIES in metadata else None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (KeyError, ValueError, pl.exceptions.PolarsError) as error:
            raise SourceError(f"{path}: is damaged, or not a score table saved by attngeo") from error
        return cls(frame, tuple(notes), None if pairs is None else table_of(pairs.to_dicts(), FREQUENCY_COLUMNS), types)


def _check_one_row_each(frame: pl.DataFrame) -> None:
    """Raise InputError unless every layer and head has one row."""
    names = frame.select("model", "stack", "layer", "head")
    for model, stack, layer, head in names.filter(names.is_duplicated()).head(1).iter_rows():
        form = f"{stack} layer {layer}" if head is None else f"{stack} layer {layer} head {head}"
        raise InputError(
            f"{model}: {form} has different scores in the two tables, expected the same scores, or a name for each "
            "model: score(…, model=NAME)"
        )


# ---- rows


def null_if_nan(value: float) -> float | None:
    """Return `value`, or None for NaN: a table has null where a score does not exist.

    >>> null_if_nan(0.5), null_if_nan(float("nan"))
    (0.5, None)
    """
    return None if math.isnan(value) else value


def form_label(row: Row) -> str:
    """Return "L3H7" for the row of a head, "L3" for that of a layer.

    >>> form_label({"layer": 3, "head": 7}), form_label({"layer": 3})
    ('L3H7', 'L3')
    """
    head = row.get("head")
    return f"L{row['layer']}" if head is None else f"L{row['layer']}H{head}"


# ---- chance levels


@dataclass(frozen=True)
class NullLevel:
    """Mean and standard deviation of a score for layers, or heads, with independent Gaussian factors."""

    mean: float
    std: float | None  # None where the table holds no z for the score


# (model, stack) → score, the name of its column → its null
LayerNulls = Mapping[tuple[str, str], Mapping[str, NullLevel]]


def layer_nulls(frame: pl.DataFrame) -> LayerNulls:
    """Return the null of the layers of each model and stack of `frame` (columns as in `ScoreTable.frame`).

    Symmetry and directionality are always there, the other SCORES where a layer has them. The layers of a stack nearly
    always have one shape; where they do not, the null is that of the first layer. A table that was scored without nulls
    has no standard deviations, only the means: 1/d for the symmetry, 0 for all others. Cross-attention has no standard
    deviation either. A stack without widths or ranks has no null.
    """
    import polars as pl

    return _nulls(frame, pl.col("head").is_null())


def head_nulls(frame: pl.DataFrame) -> LayerNulls:
    """Return the null of the heads of each model and stack of `frame`, as `layer_nulls` does for the layers.

    A head has a smaller rank than its layer, so its scores spread otherwise by chance. A stack without heads has none.

    >>> frame = attngeo.score(attngeo.bundled("encoder")).frame
    >>> (of_heads,), (of_layers,) = head_nulls(frame).values(), layer_nulls(frame).values()
    >>> of_heads["self_attending"].std > of_layers["self_attending"].std
    True
    """
    import polars as pl

    return _nulls(frame, pl.col("head").is_not_null())


def _nulls(frame: pl.DataFrame, chosen: pl.Expr) -> LayerNulls:
    """Return the null of the chosen forms of each model and stack."""
    import polars as pl

    nulls = {}
    rows = frame.filter(chosen).drop_nulls(["query_width", "key_width", "rank"])
    for part in rows.partition_by("model", "stack", maintain_order=True):
        first = part.sort("layer").row(0, named=True)
        means = dict.fromkeys(SCORES, 0.0) | {"symmetry": 1 / first["query_width"]}
        levels = {}
        for score, mean in means.items():
            if score in ("symmetry", "directionality") or part[score].null_count() < part.height:
                known = part.filter(~pl.col("cross")).sort("layer").drop_nulls(f"{score}_chance_std")
                values = known.select(f"{score}_chance", f"{score}_chance_std").head(1).rows()
                levels[score] = NullLevel(*values[0]) if values else NullLevel(mean, None)
        nulls[first["model"], first["stack"]] = levels
    return nulls
