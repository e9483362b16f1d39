"""What is measured at one step of a run: the average update of each form, and how far the form has moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, PreTrainedModel

from attngeo.arrays import to_numpy
from attngeo.live.checkpoint import attention_parameters
from attngeo.training.data.tokens import Tokens
from attngeo.training.gradients.expected_terms import expected_terms
from attngeo.training.gradients.gradient_terms import masked_batches
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.batches import Rows
from attngeo.training.pretraining.config import PretrainConfig
from attngeo.training.pretraining.pretrain import build_objective
from attngeo.weights.scoring.form import Form
from experiments.updates.records import Row


@dataclass(frozen=True)
class Passes:
    """How many backward passes an average takes, and on how many rows each."""

    count: int = 64
    rows: int = 16


def transformers_model(config_values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return the transformers BERT, an encoder or a decoder, with this config and these weights, without dropout."""
    config = BertConfig(**{key: value for key, value in config_values.items() if key != "architectures"})
    model = (BertLMHeadModel if config.is_decoder else BertForMaskedLM)(config)
    _, unknown = model.load_state_dict(dict(weights), strict=False)
    assert not unknown, unknown
    model.tie_weights()
    return model.eval()


def transformers_copy(model: Model) -> PreTrainedModel:
    """Return a transformers model with the weights of a BERT in training, in float32, on the same device."""
    weights = {name: value.detach().float().cpu() for name, value in model.state_dict().items()}
    return transformers_model(model.config.to_dict(), weights).to(next(model.parameters()).device)


def batches(config: PretrainConfig, tokens: Tokens, passes: Passes) -> Sequence[Mapping[str, Tensor]]:
    """Return held-out text for the average: the same rows under many masks, or for a decoder different rows."""
    if config.objective == "causal":
        count = passes.count * passes.rows
        rows = Rows(tokens, "train", config.length, torch.device("cpu"), count)
        ids = rows.take(torch.arange(count)).view(passes.count, passes.rows, -1)  # [passes, rows, length]
        return [{"input_ids": some, "labels": some} for some in ids]
    rows = Rows(tokens, "valid", config.length, torch.device("cpu"), passes.rows)
    objective = build_objective(config, tokens)
    return masked_batches({"input_ids": rows.take(torch.arange(passes.rows))}, objective, passes.count)  # type: ignore[arg-type]


def head_forms(model: PreTrainedModel) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return the query and key weights [d, r] of each head of each layer."""
    forms = []
    for layer in attention_parameters(model).layers:
        sides = [to_numpy(side.detach().double().flatten(0, -3).mT) for side in (layer.query, layer.key)]  # [H, d, r]
        forms.append(list(zip(*sides, strict=True)))
    return forms


def change(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> Form:
    """Return the change of a form M = W_q W_kᵀ, kept as factors [d, 2r]."""
    return Form(np.concatenate([after[0], -before[0]], 1), np.concatenate([after[1], before[1]], 1))


def average_rows(model: PreTrainedModel, given: Sequence[Mapping[str, Tensor]], same_rows: bool) -> list[Row]:
    """Return the scores of the average update, one row per head."""
    return expected_terms(model, given, same_rows=same_rows).rows()


def change_columns(name: str, form: Form) -> Row:
    """Return the scores of a change of a form, as columns with this prefix; None where nothing changed."""
    if not form.norm():
        return dict.fromkeys(f"{name}_{column}" for column in ("norm", "symmetry", "directionality", "dominance"))
    rows, columns = form.row_norms(), form.column_norms()
    return {
        f"{name}_norm": form.norm(),
        f"{name}_symmetry": form.symmetry(),
        f"{name}_directionality": form.directionality(),
        f"{name}_dominance": form.dominance(),
        f"{name}_row_variance": float(np.var(rows, ddof=1)),
        f"{name}_column_variance": float(np.var(columns, ddof=1)),
    }


def persistence(later: Form, earlier: Form) -> Row:
    """Return the cosine of two successive changes of a form, for their symmetric and for their skew parts.

    Positive where the later change goes on in the direction of the earlier one; None where nothing changed.
    """
    straight = np.sum((later.query.T @ earlier.query) * (later.key.T @ earlier.key))  # ⟨δ, Δ⟩
    crossed = np.sum((later.query.T @ earlier.key) * (later.key.T @ earlier.query))  # ⟨δ, Δᵀ⟩
    row: Row = {}
    for part, sign in (("symmetric", 1), ("skew", -1)):
        norms = [form.norm() * np.sqrt((1 + sign * form.symmetry()) / 2) for form in (later, earlier)]  # ‖δ_±‖, ‖Δ_±‖
        product = norms[0] * norms[1]
        row[f"persistence_{part}"] = float((straight + sign * crossed) / 2 / product) if product > 0 else None
    return row
