"""What a report is about: the results of each model, sorted from what the caller gave."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attngeo.applications.compare.comparison import ModelComparison
from attngeo.applications.compare.model_map import ModelMap
from attngeo.applications.prune.loss_curve import LossCurve
from attngeo.applications.prune.plan import PrunePlan
from attngeo.arguments import file_path
from attngeo.errors import InputError
from attngeo.io.names import distinct_names, joined_names, short_name
from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.expansion.controls import Comparison
from attngeo.organization.expansion.expansion import Expansion
from attngeo.organization.organization import Organization
from attngeo.organization.softmax.invariance_report import InvarianceReport
from attngeo.training.monitoring.records import Record
from attngeo.weights.scoring.form import HeadForm
from attngeo.weights.scoring.offsets import OffsetCurves
from attngeo.weights.scoring.score_table import ScoreTable


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
    sparsity: Comparison | None = None
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

        InputError where a result belongs to none of the models: results of different models are not mixed.
        """
        found = [model for model in self.models if name in ("", model.name)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(distinct_names([model.full_name for model in found]))
            called = f"{what} of {name}" if name else f"{what} without a name"
            raise InputError(f"{called}: may be of several models: {names}")
        if not self.models:
            self.models.append(ModelResults(name))
            return self.models[0]
        if len(self.models) == 1 and not self.models[0].name:
            self.models[0].name = name
            return self.models[0]
        names = joined_names(model.name for model in self.models)
        raise InputError(
            f"{what} of {name}: the other results are of {names}; results of different models cannot be given as one, "
            "expected one report for each"
        )


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
    check_consistent(results)
    if not (results.models or results.comparisons or results.maps):
        raise InputError("report: nothing was given, expected models or results")
    return results


_RESULTS = (
    ScoreTable, NetworkTensor, Organization, Expansion, Comparison, InvarianceReport, PrunePlan, LossCurve,
    ModelComparison, ModelMap, OffsetCurves,
)  # fmt: skip


def is_records(item: Any) -> bool:
    """Tell whether `item` is a list of training records."""
    return (
        isinstance(item, Sequence)
        and not isinstance(item, str | bytes)
        and len(item) > 0
        and all(isinstance(record, Mapping) and "step" in record for record in item)
    )


def _is_result(item: Any) -> bool:
    return isinstance(item, _RESULTS) or is_records(item)


def _add_reference(results: Results, ref: Any) -> None:
    if not isinstance(ref, str | os.PathLike | Mapping) and not hasattr(ref, "state_dict"):
        raise InputError(f"report: cannot use {type(ref).__name__}, expected a model or a result of attngeo")
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
    what, field_name, name = _kind(item)
    model = results.model(short_name(name), what)
    if getattr(model, field_name) is not None:
        raise InputError(f"{model.name}: two results of one kind ({what}) were given, expected one")
    setattr(model, field_name, item)


def _kind(item: Any) -> tuple[str, str, str]:
    """Return what a result is called, the field of `ModelResults` that holds it, and the name of its model."""
    match item:
        case NetworkTensor():
            return "network tensor", "tensor", item.name
        case Organization():
            return "organisation", "organization", getattr(item.tensor, "name", "")
        case Expansion():
            return "expansion", "expansion", ""
        case Comparison():
            return "sparsity", "sparsity", ""
        case InvarianceReport():
            return "invariance report", "invariance", item.name
        case PrunePlan():
            return "prune plan", "plan", item.model
        case LossCurve():
            return "loss curve", "losses", item.model
        case OffsetCurves():
            return "offset curves", "curves", item.model
        case _:
            return "training records", "training", ""


def check_consistent(results: Results) -> None:
    """Raise InputError where two results of one model cannot belong together: other trees, or heads it has not."""
    for model in results.models:
        organization, expansion = model.organization, model.expansion
        if organization is None:
            continue
        if expansion is not None and expansion.trees != organization.trees:
            raise InputError(f"{model.name}: the expansion has other trees than the organisation")
        if model.scores is not None and isinstance(organization.tensor, NetworkTensor):
            heads = model.scores.frame.drop_nulls("head").select("layer", "head").unique().rows()
            known = {f"L{layer}H{head}" for layer, head in heads}
            missing = [label for label in organization.tensor.heads if known and label not in known]
            if missing:
                raise InputError(
                    f"{model.name}: the organisation has the head {missing[0]}, which the scores lack; "
                    "results of different models cannot be given as one"
                )
