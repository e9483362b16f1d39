"""`compare_all` and `ModelMap`: the distances of several models, as a matrix, a dendrogram and a map."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.compare.compare import NEEDS_INPUTS, check_options, compare_layers, weights_of
from attngeo.applications.compare.distance import HEADS, HeadGeometry, fused_gromov_wasserstein, prepare_inputs
from attngeo.applications.compare.relation import DRAWS, Relation
from attngeo.arrays import Floats
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.weights.layout.layers import open_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.organization.inputs import SingleInput

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
        return save_json(path, "model map", as_plain(self))

    @classmethod
    def load(cls, path: str | Path) -> ModelMap:
        """Return the map that `save` wrote."""
        stored = load_json(path, "model map")
        with naming_file(path):
            found = from_plain(cls, stored)
            n = len(found.names)
            expected = [(a, b) for a in range(n) for b in range(a + 1, n)]
            if n < 2 or sorted((pair.a, pair.b) for pair in found.pairs) != expected:
                raise InputError(f"the pairs are not those of {n} models")
            if not all(0 <= pair.distance < 1e9 for pair in found.pairs):
                raise InputError("the distances are not all numbers from 0 on")
        return found

    def __repr__(self) -> str:
        lines = [f"{len(self.names)} models, {self.measure}"]
        for pair in sorted(self.pairs, key=lambda pair: pair.distance):
            verdict = f"; {pair.verdict}" if pair.verdict else ""
            lines.append(f"{pair.distance:8.4f}  {self.names[pair.a]}, {self.names[pair.b]}{verdict}")
        return "\n".join([*lines, *self.notes])


@accepts_progress_bar
def compare_all(
    models: Iterable[Any],
    *,
    inputs: SingleInput | Sequence[SingleInput] | None = None,
    align: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    truncate: bool = False,
    stack: str | Collection[str] | None = None,
    num_heads: int | None = None,
    unproven: bool = False,
    progress: Progress | bool | None = None,
) -> ModelMap:
    """Return the distances of all pairs of models: of their head geometries on `inputs`, otherwise of their forms.

    The relation of each pair is tested where their forms can be compared. Options as in `compare`; `progress` is
    called with (pairs done, all pairs).

    >>> encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    >>> found = compare_all([encoder, decoder, encoder], draws=99)
    >>> [round(pair.distance, 2) for pair in found.pairs]
    [0.98, 0.0, 0.98]
    """
    if isinstance(models, str | os.PathLike | Mapping):
        raise InputError(f"models: a {type(models).__name__}, expected a list of at least two models")
    models = list(models)
    if len(models) < 2:
        raise InputError(f"{len(models)} model, expected at least two to compare")
    check_options(draws, seed)
    options: dict[str, Any] = {"stack": stack, "num_heads": num_heads, "unproven": unproven}
    geometries = None
    if inputs is not None:
        one = prepare_inputs(models, inputs, stack=stack, truncate=truncate)
        geometries = [HeadGeometry.captured(ref, inputs, stack=one, truncate=truncate) for ref in models]
        for geometry in geometries[1:]:
            geometries[0].check_same_inputs(geometry)
        geometries = [geometry.subset(HEADS, seed) for geometry in geometries]
    numbered = [(i, j) for i in range(len(models)) for j in range(i + 1, len(models))]
    names: dict[int, str] = {}
    weights = [weights_of(ref) for ref in models]
    pairs: list[Pair] = []
    notes: dict[str, None] = {}  # in order, each once
    for done, (i, j) in enumerate(numbered, 1):
        with open_layers(weights[i], **options) as a, open_layers(weights[j], **options) as b:
            names |= {i: a.model, j: b.model}
            try:
                compared = compare_layers(a, b, has_inputs=geometries is not None, align=align, draws=draws, seed=seed)
                related = compared.related
                notes |= dict.fromkeys(compared.notes)
            except InputError as error:
                if geometries is None:
                    raise
                related = Relation.none(str(error))
        if geometries is not None:
            g, h = geometries[i], geometries[j]
            distance = fused_gromov_wasserstein(g.affinity, h.affinity, g.depth, h.depth)
        elif related.cosine is None or np.isnan(related.cosine):
            raise InputError(f"{names[i]} and {names[j]}: {related.verdict}; {NEEDS_INPUTS}")
        else:
            distance = max(0.0, 1 - related.cosine)
        pairs.append(Pair(i, j, distance, related.p_value, related.verdict))
        if callable(progress):
            progress(done, len(numbered))
    measure = FORMS if geometries is None else GEOMETRY
    return ModelMap(tuple(names[i] for i in range(len(models))), measure, tuple(pairs), tuple(notes))
