"""Models whose linear layers torch.ao.quantization has quantised: one line of error, or the right result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

import attngeo
from attngeo.errors import InputError, SourceError
from tests.weights import tiny_models

IDS = torch.arange(5, 17)[None]  # [1, tokens]
BATCH = {"input_ids": IDS, "labels": IDS}

CALLS: dict[str, Callable[[Any], Any]] = {
    "score": lambda model: attngeo.score(model),
    "compare": lambda model: attngeo.compare(model, model),
    "symmetric_init_": lambda model: attngeo.symmetric_init_(model),
    "Monitor": lambda model: attngeo.Monitor()(0, model, BATCH),
    "gradient_terms": lambda model: attngeo.gradient_terms(model, BATCH),
}


def quantised(model: nn.Module, parts: str = "") -> Any:
    """Return a copy of a model whose linear layers, those with `parts` in their path, are quantised."""
    paths = {path for path, module in model.named_modules() if isinstance(module, nn.Linear) and parts in path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        return torch.ao.quantization.quantize_dynamic(model, paths, dtype=torch.qint8)


@pytest.mark.parametrize("call", CALLS)
def test_quantised_attention_is_refused_in_one_line(call: str) -> None:
    model = quantised(tiny_models.bert())
    with pytest.raises(InputError) as caught:
        CALLS[call](model)
    assert str(caught.value) == (
        "BertForMaskedLM: bert.encoder.layer.0.attention.self.query is quantised by torch.ao.quantization, expected "
        "float weights; pass the model as it was before quantisation (quantize_dynamic)"
    )


def test_the_state_of_a_quantised_model_is_refused() -> None:
    state = quantised(tiny_models.bert()).state_dict()
    with pytest.raises(SourceError, match=r"query\._packed_params\..* packed by torch\.ao\.quantization"):
        attngeo.score(state, num_heads=4)


def test_the_file_of_a_quantised_model_is_refused(tmp_path: Path) -> None:
    """Also where other things are beside the state dict; quantised layers outside of the attention do not matter."""
    plain, file = tiny_models.bert(), tmp_path / "pytorch_model.bin"
    plain.config.save_pretrained(tmp_path)
    for content in (state := quantised(plain).state_dict(), {"model": state, "step": 3}):
        torch.save(content, file)
        with pytest.raises(SourceError, match=r"bin: tensor '.*query\._packed_params.* packed by torch\.ao\.quant"):
            attngeo.score(tmp_path)
    torch.save(quantised(plain, "intermediate").state_dict(), file)
    assert attngeo.score(tmp_path).frame.drop("model").equals(attngeo.score(plain).frame.drop("model"))


def test_other_quantised_layers_do_not_matter_to_the_weights() -> None:
    plain = tiny_models.bert()
    model = quantised(plain, "intermediate")
    assert attngeo.score(model).frame.equals(attngeo.score(plain).frame)
    assert attngeo.compare(model, plain).changes["change"].max() == 0
    attngeo.symmetric_init_(model)
    assert attngeo.score(model, heads=False).frame["symmetry"].min() == pytest.approx(1)


def test_gradients_do_not_pass_through_quantised_layers() -> None:
    path = "bert.encoder.layer.0.intermediate.dense"
    with pytest.raises(InputError, match=f"{path} is quantised by torch.ao.quantization"):
        attngeo.gradient_terms(quantised(tiny_models.bert(), "intermediate"), BATCH)


def test_quantised_models_are_captured_as_they_run() -> None:
    plain = tiny_models.bert()
    exact, rounded = (attngeo.capture(model, {"input_ids": IDS}) for model in (plain, quantised(plain)))
    assert exact.heads == rounded.heads
    np.testing.assert_allclose(rounded.values, exact.values, atol=0.1 * float(np.abs(exact.values).max()))
    assert not np.array_equal(rounded.values, exact.values)
