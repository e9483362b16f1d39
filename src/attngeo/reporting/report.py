"""`report`: everything that is known about models and their attention, as one HTML file."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.arguments import file_path, whole_number
from attngeo.errors import InputError
from attngeo.io.files import check_writable, write_errors, write_file
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.tensor import check_stage
from attngeo.reporting.assemble import page_of
from attngeo.reporting.missing import Wanted, add_comparison, add_missing
from attngeo.reporting.results import is_records, sorted_results, tell_apart
from attngeo.show.page.document import packed_plotly, page_html

if TYPE_CHECKING:
    from attngeo.organization.inputs import SingleInput


@accepts_progress_bar
def report(
    results_or_refs: Any,
    path: str | os.PathLike[str],
    *,
    inputs: SingleInput | None = None,
    against: Any = None,
    stage: str = "probabilities",
    stack: str | None = None,
    layers: int | Collection[int] | None = None,
    target: str | None = None,
    truncate: bool = False,
    sampling_rate: int | None = None,
    full: bool = False,
    num_heads: int | None = None,
    unproven: bool = False,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | bool | None = None,
) -> Path:
    """Write one HTML file that shows models and results, and return its path. It opens offline, in any browser.

    results_or_refs: one model or result, or a list of them. Models are given as in `score`; results are score tables,
                     network tensors, organisations, expansions, sparsity comparisons, invariance reports, offset
                     curves, training records, prune plans, loss curves, and comparisons of models. What is given is
                     shown as it is; what is missing is computed where there is a model to compute it from.
    inputs:          a text, an image, a sound or a mapping of tensors: the attention of the models on it is organised
    against:         another model; what changed between it and each model is shown too
    stage:           attention "probabilities" or "logits"
    stack, layers, target, truncate, sampling_rate: as in `capture`
    full:            also compute what takes longer: softmax invariance and the control of permuted values
    num_heads, unproven: as in `score`
    seed:            of the controls
    device:          torch device to compute on
    progress:        called with (parts done, all parts) of the longest steps; True draws a progress bar

    >>> attngeo.report(attngeo.bundled("encoder"), "report.html", inputs="The sea was calm.")
    PosixPath('report.html')
    """
    target_path = file_path(path)
    check_writable(target_path)
    if target_path.suffix.lower() not in ("", ".html", ".htm"):
        raise InputError(f"{target_path}: a report is an HTML page, expected a name ending in .html")
    check_stage(stage)
    if inputs is None:
        for name, given in {"target": target, "truncate": truncate, "sampling_rate": sampling_rate}.items():
            if given not in (None, False):
                raise InputError(f"{name}: says how an input is read, but no input was given")
    whole_number(seed, "seed")
    packed_plotly()  # says so at once where plotly is not installed
    results = sorted_results(_as_list(results_or_refs))
    wanted = Wanted(
        inputs=inputs,
        stage=stage,
        full=full,
        seed=seed,
        heads={"num_heads": num_heads, "unproven": unproven},
        parts={"stack": stack, "layers": (layers,) if isinstance(layers, int) else layers},
        reading={"target": target, "truncate": truncate, "sampling_rate": sampling_rate},
        computing={"device": device, "progress": progress if callable(progress) else None},
    )
    if all(model.ref is None for model in results.models):
        if inputs is not None:
            raise InputError("inputs: were given, but only results and no model to run on them")
        for name, chosen in {"stack": stack, "layers": layers}.items():
            if chosen is not None:
                raise InputError(f"{name}: chooses what is computed from a model, but only results were given")
    attention = [part for model in results.models for part in (model.tensor, model.organization, model.expansion)]
    if full and inputs is None and all(part is None for part in attention):
        raise InputError("full: asks for controls of the attention on an input, but no input was given")
    add_missing(results, wanted, against)
    if against is None:
        tell_apart(results.models)
    else:
        add_comparison(results, against, wanted)  # whose other model may share a name too
    with write_errors(target_path):
        write_file(target_path, page_html(page_of(results)).encode())
    return target_path


def _as_list(given: Any) -> list[Any]:
    """Return the single items in `given`; a list of training records and a state dict are one item."""
    if isinstance(given, str | os.PathLike | Mapping) or is_records(given) or not isinstance(given, Sequence):
        return [given]
    return list(given)
