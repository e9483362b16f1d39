"""Capture a small random model of each transformers type and write which can be captured to docs/capture.json.

For each stack, the softmax of the logits must equal the model's own probabilities up to 1e-5, and the model must give
the same output afterwards as before.

    python -m tools.capture_all            all types; writes docs/capture.json
    python -m tools.capture_all TYPE …     only these types; prints the outcomes and writes nothing
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedModel

from attngeo.errors import AttngeoError, first_line
from attngeo.io.files import write_file
from attngeo.live.attention_modules import attention_stacks
from attngeo.organization.capture import capture
from attngeo.organization.tensor import NetworkTensor
from tools.proof.capture_page import Outcomes, with_counts
from tools.proof.example_inputs import example_inputs
from tools.proof.shipped import write_shipped
from tools.proof.tiny_model import config_and_model_class, tiny_configs
from tools.proof.verdict import write_lines

DOCS = Path(__file__).resolve().parents[1] / "docs"
MAX_PARAMETERS = 3e8
TOLERANCE = 1e-5


def small_model_with_input(model_type: str) -> tuple[PreTrainedModel, dict[str, Tensor], Tensor | None]:
    """Return a small model of the type, tensors that it accepts, and its output; raise RuntimeError if none runs."""
    problem = "no input found"
    for model in _small_models(model_type):
        for feed in example_inputs(model, model.config):
            tensors = {name: value for name, value in feed.items() if isinstance(value, Tensor)}
            try:
                return model, tensors, _first_float_output(model, tensors)
            except Exception as error:
                problem = f"{type(error).__name__}: {first_line(error)[:80]}"
    raise RuntimeError(problem)


def _small_models(model_type: str) -> Iterator[PreTrainedModel]:
    """Yield models of the type, in the order of the ladder of sizes; sizes that cannot be built are skipped."""
    model_class = config_and_model_class(model_type)[1]
    for config in tiny_configs(model_type, MAX_PARAMETERS):
        try:
            torch.manual_seed(0)
            model = model_class._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        except Exception:
            continue
        yield model


def _first_float_output(model: PreTrainedModel, tensors: dict[str, Tensor]) -> Tensor | None:
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**tensors)
    values = output.values() if hasattr(output, "values") else output
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)


def outcome(model_type: str) -> tuple[str, str]:
    """Return one of `capture_page.STATUSES`, and the text of the table: captured shapes, or errors."""
    try:
        model, tensors, before = small_model_with_input(model_type)
    except Exception as error:
        return "not run", str(error).partition(" neither in ")[0]
    try:
        names = list(attention_stacks(model))
    except AttngeoError as error:
        return "refused", _message(error, model_type)
    texts, captured = [], False
    for name in names:
        try:
            logits, probabilities = (_captured(model, tensors, name, stage) for stage in ("logits", "probabilities"))
        except AttngeoError as error:
            texts.append(f"{name}: {_message(error, model_type)}")
            continue
        own = probabilities.values / probabilities.values.sum(1, keepdims=True)  # without the share of a sink
        difference = float(np.abs(logits.probabilities(masked=logits.mask is not None) - own).max())
        if difference > TOLERANCE:
            return "WRONG", f"{name}: the probabilities differ by {difference:.1g}"
        captured = True
        texts.append(f"{name} {' × '.join(map(str, logits.shape))}")
    after = _first_float_output(model, tensors)
    if before is not None and (after is None or not torch.equal(torch.nan_to_num(before), torch.nan_to_num(after))):
        return "WRONG", "the model gives another output afterwards"
    return "captured" if captured else "refused", "; ".join(texts)


def _captured(model: PreTrainedModel, tensors: dict[str, Tensor], stack: str, stage: str) -> NetworkTensor:
    torch.manual_seed(0)  # some models draw random numbers in their forward
    tensor = capture(model, tensors, stack=stack, stage=stage)
    return tensor[0] if isinstance(tensor, list) else tensor


def _message(error: Exception, model_type: str) -> str:
    return str(error).removeprefix(f"model type {model_type}: ").replace("|", "/")


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    requested = sys.argv[1:]
    outcomes: Outcomes = {}
    for model_type in requested or sorted(name for name in CONFIG_MAPPING if CONFIG_MAPPING[name] in MODEL_MAPPING):
        status, text = outcome(model_type)
        outcomes[model_type] = {"status": status, "text": text}
        print(f"{model_type:32}{status:10}{text[:120]}", flush=True)
    if not requested:
        lines = {kind: json.dumps(one, ensure_ascii=False) for kind, one in outcomes.items()}
        write_lines(DOCS / "capture.json", lines)
        page = with_counts((DOCS / "capture.md").read_text("utf-8"), outcomes, transformers.__version__)
        write_file(DOCS / "capture.md", page.encode())
        write_shipped()


if __name__ == "__main__":
    main()
