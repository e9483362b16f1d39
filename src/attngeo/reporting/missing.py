"""Compute what a report lacks: scores, forms and offset curves of the weights, organised attention on an input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngeo.applications.compare.compare import compare
from attngeo.errors import InputError
from attngeo.io.names import short_name
from attngeo.live.load import load_model
from attngeo.organization.capture import capture, check_inputs
from attngeo.organization.invariance import softmax_invariance
from attngeo.organization.organize import organize
from attngeo.organization.tensor import NetworkTensor
from attngeo.reporting.results import ModelResults, Results, reference_name, tell_apart
from attngeo.training.monitoring.records import RECORDS_FILE, Record, read_records
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.form import extreme_heads, head_forms
from attngeo.weights.scoring.offsets import offset_curves
from attngeo.weights.scoring.score import score

# Records of a training run that may lie beside the weights.
RECORD_FILES = (RECORDS_FILE, "training.jsonl")


@dataclass(frozen=True)
class Wanted:
    """What to compute, as the options of `report` say."""

    inputs: Any  # one text, image, sound or mapping of tensors; None: no model is run
    stage: str
    full: bool  # also softmax invariance and the permuted control
    seed: int
    heads: Mapping[str, Any]  # num_heads, unproven
    parts: Mapping[str, Any]  # stack, layers
    reading: Mapping[str, Any]  # target, truncate, sampling_rate
    computing: Mapping[str, Any]  # device, progress


def add_missing(results: Results, wanted: Wanted, against: Any = None) -> None:
    """Compute what is missing and can be computed from what there is.

    What one of the models refuses is found before another is run.

    against: a model to compare the others with
    """
    models = [model for model in results.models if model.ref is not None]
    for model in models if len(models) > 1 else ():
        open_layers(model.ref, **wanted.heads, **wanted.parts).checkpoint.close()
    runs = [
        model for model in models if wanted.inputs is not None and model.tensor is None and model.organization is None
    ]
    refs = [model.ref for model in runs] + ([] if against is None or wanted.inputs is None else [against])
    check_inputs(refs, wanted.inputs, **wanted.parts, **wanted.reading)
    for model in models:
        _add_weights(model, wanted)
    for model in results.models:
        if model in runs:
            _add_tensors(model, wanted)
        if model.tensor is not None and model.organization is None:
            model.organization = organize(model.tensor, **wanted.computing)
        if model.sparsity is None and model.organization is not None:
            model.expansion = model.expansion or model.organization.expand()
        if model.sparsity is None and model.expansion is not None:
            model.sparsity = model.expansion.compare(wanted.seed, permuted=wanted.full, **wanted.computing)


def add_comparison(results: Results, against: Any, wanted: Wanted) -> None:
    """Compare each model that has a reference with `against`, and score that one too."""
    models = [model for model in results.models if model.ref is not None]
    if not models:
        raise InputError("against: names a model to compare with, but no model was given, only results")
    options: dict[str, Any] = {"inputs": wanted.inputs, "seed": wanted.seed, "stack": wanted.parts["stack"]}
    options |= {"truncate": wanted.reading["truncate"], "progress": wanted.computing["progress"], **wanted.heads}
    comparisons = [compare(model.ref, against, **options) for model in models]
    other = next((model for model in results.models if model.is_of(against)), None)
    if other is None:
        scores = score(against, **wanted.heads, **wanted.parts)
        other = ModelResults(short_name(reference_name(against)), against, scores)
        results.models.append(other)
    renamed = tell_apart(results.models)
    for model, found in zip(models, comparisons, strict=True):
        both = model in renamed and other in renamed
        results.comparisons.append(replace(found, a=model.name, b=other.name) if both else found)


def _add_weights(model: ModelResults, wanted: Wanted) -> None:
    """Score the weights; look closer at three heads, and at the offsets of a model that rotates."""
    if model.scores is None:
        model.scores = score(model.ref, **wanted.heads, **wanted.parts)
    frame = model.scores.frame
    if not model.forms:
        model.forms = head_forms(model.ref, extreme_heads(frame), model=frame["model"][0], **wanted.heads)
    rotates = frame["symmetry_rope"].null_count() < frame.height
    if model.curves is None and rotates:
        model.curves = offset_curves(model.ref, **wanted.heads, **wanted.parts)
    if model.training is None and isinstance(model.ref, str | os.PathLike):
        model.training = _records_beside(Path(model.ref))


def _records_beside(folder: Path) -> list[Record] | None:
    """Return the records of the run that trained a model, where they lie in its folder."""
    found = [folder / name for name in RECORD_FILES if (folder / name).is_file()]
    return read_records(found[0]) if found else None


def _add_tensors(model: ModelResults, wanted: Wanted) -> None:
    """Run the model on the input; for softmax invariance, record the logits too."""
    loaded = load_model(model.ref, device=wanted.computing["device"])

    def captured(stage: str) -> NetworkTensor:
        tensor = capture(loaded, wanted.inputs, stage=stage, **wanted.parts, **wanted.reading)
        if not isinstance(tensor, NetworkTensor):
            raise InputError(
                f"inputs: {len(tensor)} were given, expected one; a report shows the attention on one input"
            )
        return tensor

    model.tensor = captured(wanted.stage)
    if wanted.full and model.invariance is None:
        logits = model.tensor if wanted.stage == "logits" else captured("logits")
        model.invariance = softmax_invariance(logits, seed=wanted.seed, **wanted.computing)
