"""The results: `ModelComparison` of two models, and `ModelMap` with the distances of several."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.compare.change import COLUMNS
from attngeo.applications.compare.distance import NetworkDistance
from attngeo.applications.compare.relation import Relation
from attngeo.arguments import file_path
from attngeo.arrays import Floats
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, parse_json, save_json
from attngeo.io.files import write_errors, write_file
from attngeo.io.tables import parquet_bytes, read_parquet

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ABOUT = "attngeo_comparison"  # key of the parquet metadata
SHOWN = 10  # rows of the table of changes that are printed


@dataclass(frozen=True)
class _About:
    """Everything but the table of changes, as the saved file keeps it."""

    a: str
    b: str
    related: Relation
    distance: NetworkDistance | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ModelComparison(Drawable):
    """Two models compared: `changes` per layer and head, `related` with a p-value, `distance` where inputs were given.

    >>> encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    >>> comparison = attngeo.compare(encoder, decoder)  # they were trained from the same initial values
    >>> comparison.related.p_value, comparison.changes.height
    (0.001, 20)
    """

    a: str  # names of the models
    b: str
    changes: pl.DataFrame  # columns COLUMNS, in the order of the layers; empty where no forms can be compared
    related: Relation
    distance: NetworkDistance | None = None
    notes: tuple[str, ...] = ()  # remarks that a reader must know

    @property
    def identical(self) -> bool:
        """Return whether all query and key weights that were compared are the same."""
        changes = self.changes["change"]  # null where a form is zero in the first model alone
        return len(changes) > 0 and bool((changes == 0).fill_null(value=False).all())

    def sorted(self, *, heads: bool = True) -> pl.DataFrame:
        """Return the rows of the heads, or of the layers, with the largest change first."""
        import polars as pl

        kind = pl.col("head").is_not_null() if heads else pl.col("head").is_null()
        return self.changes.filter(kind).sort("change", descending=True, nulls_last=True, maintain_order=True)

    def words(self) -> list[str]:
        """Return the answers to the three questions, one sentence each, then the notes."""
        return [self._changed(), f"Related: {self.related.verdict}.", self._apart(), *self.notes]

    def _changed(self) -> str:
        layers, heads = self.sorted(heads=False), self.sorted()
        if not layers.height:
            return "Changed: no forms can be compared."
        if self.identical:
            return f"Changed: nothing, the query and key weights of {self.a} and {self.b} are identical."
        text = f"Changed: the forms of {layers.height} layers by {_percent(layers['change'].median())} in the median"
        most, largest = layers.row(0, named=True), heads["change"].max()
        where = f"L{most['layer']}"
        several = layers["stack"].n_unique() > 1
        if largest is not None:
            text += f", of {heads.height} heads by {_percent(heads['change'].median())}"
        if largest:  # 0: the heads that both have are the same, and one model lost others
            most = heads.row(0, named=True)
            where = f"L{most['layer']}H{most['head']}"
        where = f"{most['stack']}/{where}" if several else where
        return f"{text}; most in {where}, by {_percent(most['change'])}."

    def _apart(self) -> str:
        if self.distance is None:
            return "Distance: not measured, because no inputs were given."
        return f"Distance: {self.distance.sentence()}."

    def plot(self) -> Figure:
        """Draw the changes as a layer × head map, and the relation beside its null."""
        return draw("comparison_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the comparison to one Parquet file and return its path: the changes, and all else in its metadata."""
        path = file_path(path)
        if path.suffix != ".parquet":
            raise InputError(f"{path}: a comparison is saved as .parquet; use .changes to write other formats")
        with write_errors(path):
            write_file(path, parquet_bytes(self.changes, {ABOUT: json.dumps(self.about())}))
        return path

    def about(self) -> dict[str, Any]:
        """Return everything but the table of changes as plain values."""
        return as_plain(_About(self.a, self.b, self.related, self.distance, self.notes))

    @classmethod
    def load(cls, path: str | Path) -> ModelComparison:
        """Read a comparison that `save` wrote."""
        try:
            frame, metadata = read_parquet(file_path(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
        except ValueError as error:
            raise InputError(f"{path}: not a sound Parquet file, expected a saved comparison") from error
        if {name: str(kind) for name, kind in frame.schema.items()} != COLUMNS or ABOUT not in metadata:
            raise InputError(f"{path}: is not a comparison, expected a Parquet file saved by attngeo")
        with naming_file(path):
            about = from_plain(_About, parse_json(metadata[ABOUT]))
        return cls(about.a, about.b, frame, about.related, about.distance, about.notes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelComparison):
            return NotImplemented
        return self.about() == other.about() and self.changes.equals(other.changes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        title = f"{self.a} compared with {self.b}"
        most = self.sorted().head(SHOWN).select("stack", "layer", "head", "change", "cosine")
        return "\n".join([title, *self.words(), *([repr(most)] if most.height else [])])

    def _repr_html_(self) -> str:
        lines = [f"{self.a} compared with {self.b}", *self.words()]
        return "".join(f"<p>{html.escape(line)}</p>" for line in lines) + str(self.sorted()._repr_html_())


def _percent(share: object) -> str:
    return f"{100 * share:.3g}%" if isinstance(share, float) else "?"


# ---- several models

GEOMETRY = "fused Gromov–Wasserstein distance of the head geometries"
FORMS = "1 − mean matched |cosine| of the forms"


@dataclass(frozen=True)
class Pair:
    """Two of several models: their distance and, where their forms can be compared, their relation."""

    a: int  # positions in the list of models
    b: int
    distance: float
    p_value: float | None = None  # of a common origin
    verdict: str = ""


@dataclass(frozen=True)
class ModelMap(Drawable):
    """The distances of several models.

    >>> pairs = (Pair(0, 1, 0.1), Pair(0, 2, 0.9), Pair(1, 2, 0.8))
    >>> models = ModelMap(("base", "tuned", "other"), FORMS, pairs)
    >>> models.distances.round(1).tolist()
    [[0.0, 0.1, 0.9], [0.1, 0.0, 0.8], [0.9, 0.8, 0.0]]
    >>> models.order
    [2, 0, 1]
    """

    names: tuple[str, ...]
    measure: str  # GEOMETRY or FORMS
    pairs: tuple[Pair, ...]  # each pair of models once
    notes: tuple[str, ...] = ()  # remarks that a reader must know, of all pairs

    @property
    def distances(self) -> Floats:
        """Return the distance matrix, [n, n]."""
        matrix = np.zeros((len(self.names), len(self.names)))
        for pair in self.pairs:
            matrix[pair.a, pair.b] = matrix[pair.b, pair.a] = pair.distance
        return matrix

    @property
    def linkage(self) -> Floats:
        """Return the average-linkage clustering of the models as scipy gives it, [n − 1, 4]."""
        from scipy.cluster.hierarchy import linkage
        from scipy.spatial.distance import squareform

        return np.asarray(linkage(squareform(self.distances, checks=False), "average"))

    @property
    def order(self) -> list[int]:
        """Return the models in the order of the leaves of the dendrogram."""
        from scipy.cluster.hierarchy import leaves_list

        return [int(leaf) for leaf in leaves_list(self.linkage)]

    @property
    def coordinates(self) -> Floats:
        """Return a map of the models, [n, 2]: classical multidimensional scaling of the distances."""
        n = len(self.names)
        centre = np.eye(n) - 1 / n
        values, vectors = np.linalg.eigh(-centre @ np.square(self.distances) @ centre / 2)
        leading = np.argsort(-values)[:2]
        return np.asarray(vectors[:, leading] * np.sqrt(np.maximum(values[leading], 0)))

    def plot(self) -> Figure:
        """Draw the distance matrix, the dendrogram and the map."""
        return draw("model_map_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the map to one .json file and return its path."""
        return save_json(path, "model map", as_plain(self), of=self)

    @classmethod
    def load(cls, path: str | Path) -> ModelMap:
        """Return the map that `save` wrote."""
        stored = load_json(path, "model map")
        with naming_file(path):
            return from_plain(cls, stored)

    def __repr__(self) -> str:
        lines = [f"{len(self.names)} models, {self.measure}"]
        for pair in sorted(self.pairs, key=lambda pair: pair.distance):
            verdict = f"; {pair.verdict}" if pair.verdict else ""
            lines.append(f"{pair.distance:8.4f}  {self.names[pair.a]}, {self.names[pair.b]}{verdict}")
        return "\n".join([*lines, *self.notes])
