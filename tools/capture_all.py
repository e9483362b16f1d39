"""Capture a tiny random model of every transformers type and write down which can be: docs/capture.md.

For every stack: the logits give the model's own probabilities (largest difference at most 1e-5), and the model's output
afterwards is what it was before. `python -m tools.capture_all [TYPE …]`; with types named, only prints them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING

from attngeo.errors import AttngeoError, first_line
from attngeo.live.attention_modules import stacks_of
from attngeo.organization.capture.capture import capture
from tools.proof.build import LADDER, classes, configuration, plain_experts
from tools.proof.feeds import feeds

PAGE = Path(__file__).resolve().parents[1] / "docs" / "capture.md"
LARGEST = 3e8  # parameters


def running(kind: str) -> tuple[Any, dict[str, Any], Any]:
    """A small model of the type, inputs it takes, and its output."""
    problem = "no input found"
    for model in _models(kind):
        for feed in feeds(model, model.config):
            tensors = {name: value for name, value in feed.items() if isinstance(value, torch.Tensor)}
            try:
                return model, tensors, _output(model, tensors)
            except Exception as error:
                problem = f"{type(error).__name__}: {first_line(error)[:80]}"
    raise RuntimeError(problem)


def _models(kind: str) -> Iterator[Any]:
    model_class = classes(kind)[1]
    for layers, factor, largest in LADDER:
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(configuration(kind, layers, factor)).parameters())
            if size > min(largest, LARGEST):
                continue
            config = configuration(kind, layers, factor)
            plain_experts(config)
            torch.manual_seed(0)
            model = model_class._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        except Exception:
            continue
        yield model


def _output(model: Any, tensors: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**tensors)
    values = output.values() if hasattr(output, "values") else output
    return next((v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()), None)


def outcome(kind: str) -> tuple[str, str]:
    """("captured" | "refused" | "not run" | "WRONG", what there is to say)."""
    try:
        model, tensors, before = running(kind)
    except Exception as error:
        return "not run", str(error).partition(" neither in ")[0]
    try:
        names = list(stacks_of(model))
    except AttngeoError as error:
        return "refused", _reason(error, kind)
    said, done = [], False
    for name in names:
        try:
            logits, given = (_one(model, tensors, name, stage) for stage in ("logits", "probabilities"))
        except AttngeoError as error:
            said.append(f"{name}: {_reason(error, kind)}")
            continue
        own = given.values / given.values.sum(1, keepdims=True)
        error = float(np.abs(logits.probabilities(masked=logits.mask is not None) - own).max())
        if error > 1e-5:
            return "WRONG", f"{name}: probabilities off by {error:.1g}"
        done = True
        said.append(f"{name} {' × '.join(map(str, logits.shape))}")
    after = _output(model, tensors)
    if before is not None and not torch.equal(torch.nan_to_num(before), torch.nan_to_num(after)):
        return "WRONG", "the model gives another output afterwards"
    return "captured" if done else "refused", "; ".join(said)


def _one(model: Any, tensors: dict[str, Any], stack: str, stage: str) -> Any:
    torch.manual_seed(0)  # some models draw numbers as they run
    tensor = capture(model, tensors, stack=stack, stage=stage)
    return tensor[0] if isinstance(tensor, list) else tensor


def _reason(error: Exception, kind: str) -> str:
    return str(error).removeprefix(f"model type {kind}: ").replace("|", "/")


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    kinds = sys.argv[1:] or sorted(kind for kind in CONFIG_MAPPING if CONFIG_MAPPING[kind] in MODEL_MAPPING)
    found: dict[str, list[tuple[str, str]]] = {}
    for kind in kinds:
        status, words = outcome(kind)
        found.setdefault(status, []).append((kind, words))
        print(f"{kind:32}{status:10}{words[:120]}", flush=True)
    if sys.argv[1:]:
        return
    lines = [
        "# Which model types can be captured\n",
        f"A small random model of each of the {len(kinds)} types that transformers {transformers.__version__} maps to",
        "a model, captured stack by stack: the softmax of the logits must be the model's own probabilities to 1e-5,",
        "and the model must give the same output afterwards. Not run: no small model, or no made-up input it takes,",
        "was found; nothing is said of those. Made by `python -m tools.capture_all`.\n",
        "| " + " | ".join(found) + " |\n|" + "---|" * len(found),
        "| " + " | ".join(str(len(rows)) for rows in found.values()) + " |\n",
    ]
    for status in ("WRONG", "captured", "refused", "not run"):
        if status in found:
            lines += [f"## {status[0].upper()}{status[1:]} ({len(found[status])})\n", "| type | |\n|---|---|"]
            lines += [f"| {kind} | {words} |" for kind, words in found[status]] + [""]
    PAGE.write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
