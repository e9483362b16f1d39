"""Checkpoints from modules and state dicts in memory."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import attngeo
from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import normal

torch = pytest.importorskip("torch")


def test_arrays_of_every_float_type_are_read() -> None:
    kinds = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    arrays = {np.dtype(kind).name: normal(6, 4, dtype=kind) for kind in kinds}
    with open_checkpoint(arrays) as checkpoint:
        assert checkpoint.ref == "state dict" and checkpoint.config is None
        for name, array in arrays.items():
            assert checkpoint.tensors[name].shape == (6, 4)
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(name)), array.astype(np.float32))
            rows = checkpoint.read(ReadRequest(name, ((1, 3), (5, 6))))
            np.testing.assert_array_equal(rows, array[[1, 2, 5]].astype(np.float32))


def test_transposed_tracked_scalar_and_empty_tensors_are_read() -> None:
    base = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tensors = {"t": base.T, "g": base, "s": torch.tensor(3.0), "e": torch.empty(0, 4), "np": normal(6, 4).T}
    with open_checkpoint(tensors, config={"model_type": "x"}) as checkpoint:
        assert checkpoint.config == {"model_type": "x"}
        np.testing.assert_array_equal(checkpoint.read(ReadRequest("t", ((2, 4),))), base.detach().T[2:4].numpy())
        for name, value in tensors.items():
            expected = value if isinstance(value, np.ndarray) else value.detach().numpy()
            values = checkpoint.read(ReadRequest(name))
            np.testing.assert_array_equal(values, expected)
            assert values.flags["C_CONTIGUOUS"]


class TinyModule(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(4, 4, bias=False)
        self.tied = self.query
        self.key = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4, bias=False))


@pytest.mark.parametrize("model_type", ["vit", "mistral_large4"])  # other names, other order of a head's dimensions
def test_a_module_has_the_scores_of_the_saved_model(tmp_path: Path, model_type: str) -> None:
    from tools.proof.tiny_model import tiny_models

    model = next(iter(tiny_models(model_type)))
    model.save_pretrained(tmp_path)
    options = {"nulls": False, "heads": False, "model": model_type}
    in_memory, saved = attngeo.score(model, **options), attngeo.score(tmp_path, **options)
    assert saved.frame["symmetry_folded"].null_count() == 0
    assert in_memory == saved


def test_tied_and_parametrised_weights_are_read_as_used() -> None:
    model = TinyModule()
    with torch.no_grad():
        model.key.parametrizations.weight.original0.mul_(3)
    with open_checkpoint(model) as checkpoint:
        assert checkpoint.ref == "TinyModule" and checkpoint.config is None
        np.testing.assert_array_equal(checkpoint.read(ReadRequest("tied.weight")), model.query.weight.detach().numpy())
        np.testing.assert_array_equal(checkpoint.read(ReadRequest("key.weight")), model.key.weight.detach().numpy())


def test_values_that_cannot_be_read_are_named() -> None:
    bad = torch.ones(3, 2)
    bad[2, 0] = -float("inf")
    tensors = {
        "bad": bad,
        "ints": torch.ones(2, dtype=torch.int8),
        "meta": torch.ones(2, device="meta"),
    }
    with open_checkpoint(tensors) as checkpoint:
        for name, part in {
            "bad": r"state dict: tensor 'bad' holds -inf at \[2, 0\]",
            "ints": "'ints' is stored as int8; floating-point",
            "meta": "'meta' cannot be read",
            "none": "no tensor 'none'",
        }.items():
            with pytest.raises(SourceError, match=part) as caught:
                checkpoint.read(ReadRequest(name))
            assert "\n" not in str(caught.value)


def test_arrays_and_safetensors_do_not_import_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = """
import sys, numpy as np
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
print(open_checkpoint({"w": np.ones((2, 2))}).read(ReadRequest("w")).sum(), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4.0", "False"]
