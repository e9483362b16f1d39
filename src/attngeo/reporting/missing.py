"""Compute what a report lacks: scores, forms and offset curves of the weights, organised attention on an input."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngeo.applications.compare.compare import compare
from attngeo.errors import InputError
from attngeo.io.names import short_name
from attngeo.io.progress import Progress
from attngeo.live.load import load_model
from attngeo.organization.capture.capture import capture
from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.organize import organize
from attngeo.organization.softmax.invariance import softmax_invariance
from attngeo.reporting.model_names import tell_apart
from attngeo.reporting.results import ModelResults, Results, reference_name
from attngeo.training.monitoring.records import RECORDS_FILE, read_records
from attngeo.weights.scoring.form import extreme_heads, head_forms
from attngeo.weights.scoring.offsets import offset_curves
from attngeo.weights.scoring.score import score

# Records of a training run that may lie beside the weights.
RECORD_FILES = (RECORDS_FILE, "training.jsonl")


@dataclass(frozen=True)
class Wanted:
    """What to compute, as the options of `report` say."""

    inputs: Any = None  # one text, image, sound or mapping of tensors; None: no model is run
    stage: str = "probabilities"
    stack: str | None = None
    layers: Collection[int] | None = None
    target: str | None = None
    truncate: bool = False
    sampling_rate: int | None = None
    full: bool = False  # also softmax invariance and the permuted control
    num_heads: int | None = None
    unproven: bool = False
    seed: int = 0
    device: str | None = None
    progress: Progress | None = None


def add_missing(results: Results, wanted: Wanted) -> None:
    """Compute what is missing in the results of each model and can be computed from what there is."""
    for model in results.models:
        if model.ref is not None:
            _add_weights(model, wanted)
        # The input may be unsuitable, so the model runs before anything slower is done.
        if model.ref is not None and wanted.inputs is not None and model.organization is None and model.tensor is None:
            _add_tensors(model, wanted)
        if model.tensor is not None and model.organization is None:
            model.organization = organize(model.tensor, device=wanted.device, progress=wanted.progress)
        if model.organization is not None and model.sparsity is None:
            model.expansion = model.expansion or model.organization.expand()
        if model.expansion is not None and model.sparsity is None:
            model.sparsity = model.expansion.compare(
                wanted.seed, permuted=wanted.full, device=wanted.device, progress=wanted.progress
            )


def add_comparison(results: Results, against: Any, wanted: Wanted) -> None:
    """Compare each model that has a reference with `against`, and score that one too."""
    models = [model for model in results.models if model.ref is not None]
    if not models:
        raise InputError("against: names a model to compare with, but no model was given, only results")
    comparisons = [
        compare(
            model.ref,
            against,
            inputs=wanted.inputs,
            seed=wanted.seed,
            truncate=wanted.truncate,
            stack=wanted.stack,
            num_heads=wanted.num_heads,
            unproven=wanted.unproven,
            progress=wanted.progress,
        )
        for model in models
    ]
    other = next((model for model in results.models if model.is_of(against)), None)
    if other is None:
        other = ModelResults(short_name(reference_name(against)), against)
        other.scores = _scores(against, wanted)
        results.models.append(other)
    renamed = tell_apart(results.models)
    for model, found in zip(models, comparisons, strict=True):
        both = model in renamed and other in renamed
        results.comparisons.append(replace(found, a=model.name, b=other.name) if both else found)


def _scores(ref: Any, wanted: Wanted) -> Any:
    options: dict[str, Any] = {"stack": wanted.stack, "layers": wanted.layers}
    return score(ref, num_heads=wanted.num_heads, unproven=wanted.unproven, **options)


def _add_weights(model: ModelResults, wanted: Wanted) -> None:
    """Score the weights; look closer at three heads, and at the offsets of a model that rotates."""
    options: dict[str, Any] = {"num_heads": wanted.num_heads, "unproven": wanted.unproven}
    if model.scores is None:
        model.scores = _scores(model.ref, wanted)
    frame = model.scores.frame
    if not model.forms:
        model.forms = head_forms(model.ref, extreme_heads(frame), model=frame["model"][0], **options)
    rotates = frame["symmetry_rope"].null_count() < frame.height
    if model.curves is None and rotates:
        model.curves = offset_curves(model.ref, stack=wanted.stack, layers=wanted.layers, **options)
    if model.training is None and isinstance(model.ref, str | os.PathLike):
        model.training = _records_beside(Path(model.ref))


def _records_beside(folder: Path) -> Any:
    """Return the records of the run that trained a model, where they lie in its folder."""
    for name in RECORD_FILES:
        if (folder / name).is_file():
            return read_records(folder / name)
    return None


def _add_tensors(model: ModelResults, wanted: Wanted) -> None:
    """Run the model on the input; for softmax invariance, record the logits too."""
    options: dict[str, Any] = {
        "layers": wanted.layers,
        "stack": wanted.stack,
        "target": wanted.target,
        "truncate": wanted.truncate,
        "sampling_rate": wanted.sampling_rate,
    }
    if not wanted.full:
        model.tensor = _single(capture(model.ref, wanted.inputs, stage=wanted.stage, device=wanted.device, **options))
        return
    loaded = load_model(model.ref, device=wanted.device)
    processor = loaded.image_processor or loaded.feature_extractor
    options |= {"tokenizer": loaded.tokenizer, "processor": processor}
    logits = replace(_single(capture(loaded.model, wanted.inputs, stage="logits", **options)), name=loaded.name)
    model.tensor = logits
    if wanted.stage != "logits":
        model.tensor = replace(
            _single(capture(loaded.model, wanted.inputs, stage=wanted.stage, **options)), name=loaded.name
        )
    if model.invariance is None:
        model.invariance = softmax_invariance(logits, seed=wanted.seed, device=wanted.device, progress=wanted.progress)


def _single(captured: NetworkTensor | list[NetworkTensor]) -> NetworkTensor:
    if isinstance(captured, list):
        raise InputError(f"inputs: {len(captured)} were given, expected one; a report shows the attention on one input")
    return captured
