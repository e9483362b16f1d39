"""How far a copy may have moved before the relation is lost: fine-tuning, common initial values, noise, permutation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import attngeo
from attngeo.applications.compare import ModelComparison
from attngeo.training.data.tokens import Tokens
from experiments.comparison.small_models import new_model, train_model

STEPS = (1, 10, 100, 1000)
NOISE = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)


def load(path: Path) -> Any:
    """Return a saved model."""
    import transformers

    kind = transformers.BertForMaskedLM if path.name.startswith("bert") else transformers.LlamaForCausalLM
    return kind.from_pretrained(path)


def fine_tuned(path: Path, tokens: Tokens, steps: Sequence[int] = STEPS) -> dict[int, ModelComparison]:
    """Return the trained model compared with itself after more steps on other rows."""
    model, found = load(path), {}
    for step in train_model(model, tokens, steps, order=99):
        found[step] = attngeo.compare(path, model)
    return found


def common_start(kind: str, tokens: Tokens) -> dict[int, ModelComparison]:
    """Return two models compared that were trained from the same initial values on rows in two orders."""
    models = [new_model(kind, tokens.vocabulary, 1000) for _ in range(2)]
    runs = [train_model(model, tokens, STEPS, order=order) for order, model in enumerate(models)]
    return {step: attngeo.compare(*models) for step, _ in zip(*runs, strict=True)}


def noisy(path: Path, sizes: Sequence[float] = NOISE) -> dict[float, ModelComparison]:
    """Return the model compared with copies in which noise of `size` times its norm was added to every matrix."""
    found = {}
    for size in sizes:
        generator, model = torch.Generator().manual_seed(0), load(path)
        with torch.no_grad():
            for value in model.parameters():
                if value.dim() == 2:
                    noise = torch.randn(value.shape, generator=generator)
                    value += size * value.norm() / noise.norm() * noise
        found[size] = attngeo.compare(path, model)
    return found


def permuted(path: Path, steps: int, tokens: Tokens) -> dict[bool, ModelComparison]:
    """Return the model compared with a fine-tuned copy whose hidden dimensions were permuted, without and with align.

    The hidden dimensions of an RMSNorm model also change their signs.
    """
    model = load(path)
    for _ in train_model(model, tokens, [steps], order=99):
        pass
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(width, generator=generator)
    flips = "Llama" in type(model).__name__
    signs = torch.randint(0, 2, (width,), generator=generator) * 2.0 - 1 if flips else torch.ones(width)
    state = {
        name: value[:, order] * signs
        for name, value in model.state_dict().items()
        if value.dim() == 2 and value.shape[1] == width
    }
    other = load(path)
    other.load_state_dict(state, strict=False)
    return {align: attngeo.compare(path, other, align=align) for align in (False, True)}
