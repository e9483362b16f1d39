"""What a report is about: the results of each model, sorted from what the caller gave.

ModelResults, Results   what is known about one model, and about all
sorted_results          results and references, sorted by model
load_given              a saved result from its file, so that the command line can show results as well as models
tell_apart              names by which readers can tell the models apart
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attngeo.applications.compare.comparison import ABOUT, ModelComparison, ModelMap
from attngeo.applications.prune.curve import LossCurve
from attngeo.applications.prune.plan import PrunePlan
from attngeo.arguments import file_path
from attngeo.errors import InputError, SourceError
from attngeo.io.archive import saved_kind
from attngeo.io.names import distinct_names, joined_names, short_name
from attngeo.io.tables import read_parquet
from attngeo.organization.expansion import Expansion, SparsityControls
from attngeo.organization.invariance import InvarianceReport
from attngeo.organization.organize import Organization
from attngeo.organization.tensor import NetworkTensor
from attngeo.training.monitoring.records import Record, read_records
from attngeo.weights.scoring.form import HeadForm
from attngeo.weights.scoring.offsets import OffsetCurves
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.sources import SUFFIXES


@dataclass(eq=False)
class ModelResults:
    """What is known about one model; None or empty where it was neither given nor computed."""

    name: str  # the last two parts of its path or hub id, more where models share them; "" where no result names it
    ref: Any = None  # a reference from which the rest can be computed
    scores: ScoreTable | None = None
    forms: tuple[HeadForm, ...] = ()
    curves: OffsetCurves | None = None
    tensor: NetworkTensor | None = None
    organization: Organization | None = None
    expansion: Expansion | None = None
    sparsity: SparsityControls | None = None
    invariance: InvarianceReport | None = None
    training: list[Record] | None = None
    plan: PrunePlan | None = None
    losses: LossCurve | None = None

    @property
    def scored_name(self) -> str:
        """Return the model's name in its score table; its own name where it was not scored."""
        return self.name if self.scores is None else str(self.scores.frame["model"][0])

    @property
    def full_name(self) -> str:
        """Return the path or hub id of the model, the class of one in memory, or the name in its score table."""
        return self.scored_name if self.ref is None else reference_name(self.ref)

    def is_of(self, ref: Any) -> bool:
        """Return whether the results are those of `ref`: the same object, folder, file or hub id."""
        if not isinstance(ref, str | os.PathLike):
            return self.ref is ref
        if self.ref is not None and not isinstance(self.ref, str | os.PathLike):
            return False
        mine, others = (os.path.realpath(file_path(name)) for name in (self.full_name, ref))
        return mine == others


def reference_name(ref: Any) -> str:
    """Return the path or hub id of a model; for one in memory, where it was loaded from, or its class."""
    if isinstance(ref, str | os.PathLike):
        return os.fspath(ref)
    return str(getattr(ref, "name_or_path", "") or type(ref).__name__)


@dataclass
class Results:
    """The results of all models of a report, and those that concern several models."""

    models: list[ModelResults] = field(default_factory=list)
    comparisons: list[ModelComparison] = field(default_factory=list)
    maps: list[ModelMap] = field(default_factory=list)

    def model(self, name: str, what: str) -> ModelResults:
        """Return the model with this name; results without a name belong to the only model.

        InputError where a result belongs to none of the models or to several: those of different models are not mixed.
        """
        found = [model for model in self.models if name in ("", model.name)]
        if not self.models:
            self.models.append(ModelResults(name))
            found = self.models
        elif len(self.models) == 1 and not self.models[0].name:
            self.models[0].name = name
            found = self.models
        if len(found) != 1:
            names = joined_names(distinct_names([model.full_name for model in self.models]))
            raise InputError(
                f"{what} of {name or 'no model'}: the other results are of {names}; expected results of one of them, "
                "with a name that tells which"
            )
        return found[0]


def sorted_results(given: Iterable[Any]) -> Results:
    """Return results and references sorted by model; references and score tables say which models there are."""
    results = Results()
    items = list(given)
    for item in items:
        if isinstance(item, ScoreTable):
            _add_scores(results, item)
        elif not _is_result(item):
            _add_reference(results, item)
    _join_tables(results.models)
    for item in items:
        if _is_result(item) and not isinstance(item, ScoreTable):
            _add_result(results, item)
    for model in results.models:
        organization, expansion = model.organization, model.expansion
        if organization is not None and expansion is not None and expansion.trees != organization.trees:
            raise InputError(f"{model.name}: the expansion has other trees than the organisation")
    if not (results.models or results.comparisons or results.maps):
        raise InputError("report: nothing was given, expected models or results")
    return results


# Type of a result of one model → what it is called, and the field of `ModelResults` that holds it.
_KINDS: dict[type, tuple[str, str]] = {
    NetworkTensor: ("network tensor", "tensor"),
    Organization: ("organisation", "organization"),
    Expansion: ("expansion", "expansion"),
    SparsityControls: ("sparsity", "sparsity"),
    InvarianceReport: ("invariance report", "invariance"),
    PrunePlan: ("prune plan", "plan"),
    LossCurve: ("loss curve", "losses"),
    OffsetCurves: ("offset curves", "curves"),
}


def is_records(item: Any) -> bool:
    """Tell whether `item` is a list of training records."""
    return (
        isinstance(item, Sequence)
        and not isinstance(item, str | bytes)
        and len(item) > 0
        and all(isinstance(record, Mapping) and "step" in record for record in item)
    )


def _is_result(item: Any) -> bool:
    return isinstance(item, (ScoreTable, ModelComparison, ModelMap, *_KINDS)) or is_records(item)


def _add_reference(results: Results, ref: Any) -> None:
    name = short_name(reference_name(ref))
    if any(model.ref is not None and model.is_of(ref) for model in results.models):
        raise InputError(f"{name}: given twice, expected different models")
    results.models.append(ModelResults(name, ref))


def _add_scores(results: Results, table: ScoreTable) -> None:
    for part in table.frame.partition_by("model", maintain_order=True):
        full = part["model"][0]
        name = short_name(full)
        if any(model.ref is None and model.is_of(full) for model in results.models):
            raise InputError(f"{name}: two score tables of this model were given, expected one")
        pairs = table.frequencies
        own = replace(table, frame=part, frequencies=None if pairs is None else pairs.filter(pairs["model"] == full))
        results.models.append(ModelResults(name, scores=own))


def _join_tables(models: list[ModelResults]) -> None:
    """Give each reference the score table of its model: of the same path, or the only one of the same name."""
    for model in [model for model in models if model.ref is not None]:
        alike = [other for other in models if other.name == model.name and other is not model]
        for other in alike:
            if other.ref is None and (len(alike) == 1 or other.is_of(model.ref)):
                model.scores = other.scores
                models.remove(other)


def _add_result(results: Results, item: Any) -> None:
    if isinstance(item, ModelComparison):
        results.comparisons.append(item)
        return
    if isinstance(item, ModelMap):
        results.maps.append(item)
        return
    what, kind = _KINDS.get(type(item), ("training records", "training"))
    named = item.tensor if isinstance(item, Organization) else item
    model = results.model(short_name(getattr(named, "name", "") or getattr(named, "model", "")), what)
    if getattr(model, kind) is not None:
        raise InputError(f"{model.name}: two results of one kind ({what}) were given, expected one")
    setattr(model, kind, item)


# ---- names


def tell_apart(models: Sequence[ModelResults]) -> tuple[ModelResults, ...]:
    """Rename the models that a page would call by one name, in all of their results, and return them."""
    shown = [short_name(model.scored_name) for model in models]
    alike = [model for model, name in zip(models, shown, strict=True) if shown.count(name) > 1]
    for model, name in zip(alike, distinct_names([model.full_name for model in alike]), strict=True):
        _rename(model, name)
    return tuple(alike)


def _rename(model: ModelResults, name: str) -> None:
    """Give a model, and those of its results that a page names, another name; remarks keep the full name."""
    import polars as pl

    model.name = name
    model.forms = tuple(replace(form, model=name) for form in model.forms)
    for kind in ("curves", "plan", "losses"):
        if (result := getattr(model, kind)) is not None:
            setattr(model, kind, replace(result, model=name))
    if (table := model.scores) is not None:
        column = pl.lit(name).alias("model")
        pairs = None if table.frequencies is None else table.frequencies.with_columns(column)
        known = table.model_types.get(table.frame["model"][0])
        types = {} if known is None else {name: known}
        model.scores = replace(table, frame=table.frame.with_columns(column), frequencies=pairs, model_types=types)


# ---- files

# What a file says that it holds → its type.
_SAVED: dict[str, Any] = {
    "network tensor": NetworkTensor,
    "organization": Organization,
    "expansion": Expansion,
    "comparison": SparsityControls,
    "invariance report": InvarianceReport,
    "prune plan": PrunePlan,
    "pruning losses": LossCurve,
    "model map": ModelMap,
}


def load_given(ref: str) -> Any:
    """Return the result in the file `ref`, or `ref` itself where it names a model.

    Results are recognised by their content: .npz, .json and .parquet files that attngeo wrote, and .jsonl files of
    training records.
    """
    path = Path(ref)
    if not path.is_file():
        return ref
    if path.suffix == ".jsonl":
        if not (records := read_records(path)):
            raise SourceError(f"{path}: holds no records, expected those of a training run")
        return records
    if path.suffix == ".parquet":
        with suppress(OSError, ValueError):  # what is wrong, the score table will say
            if ABOUT in read_parquet(path)[1]:
                return ModelComparison.load(path)
        return ScoreTable.load(path)
    if path.suffix in (".npz", ".json"):
        kind = saved_kind(path)
        if kind in _SAVED:
            return _SAVED[kind].load(path)
        if path.suffix == ".npz":  # which is never a model
            found = "is incomplete, damaged or not a file of attngeo" if kind is None else f"holds a saved {kind}"
            raise SourceError(f"{path}: {found}, expected a result that a report shows")
    if not path.name.endswith((*SUFFIXES, *(f"{suffix}.index.json" for suffix in SUFFIXES))):
        weights, results = ", ".join(SUFFIXES), ".npz, .json, .jsonl, .parquet"
        raise SourceError(
            f"{path}: neither weights nor a saved result; expected a model folder, a file of weights ({weights}) or "
            f"a result that attngeo saved ({results})"
        )
    return ref
