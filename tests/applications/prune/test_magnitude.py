"""The criterion "magnitude" is the product of two norms of each head, those of its form and of its value circuit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import attngeo  # noqa: E402
from attngeo.applications.prune.criteria.scores import magnitude  # noqa: E402
from attngeo.applications.prune.removal.layers import prunable_layers  # noqa: E402
from tests.applications.prune.prunable_models import tiny_model  # noqa: E402


@pytest.mark.parametrize("kind", ["bert", "llama", "qwen3"])
def test_magnitudes_have_the_norms_of_the_scored_forms(kind: str) -> None:
    """In Qwen 3 with its QK-norm gains, which differ between layers."""
    model = tiny_model(kind, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.copy_(torch.linspace(0.2, 3, len(weight)) * (1 + ("layers.1." in name)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scored = attngeo.score(model, nulls=False, folded=False).frame.drop_nulls("head")
    for layer in prunable_layers(model):
        norms = scored.filter(layer=layer.layer)["norm"].to_numpy()  # [H]
        values = layer.inputs[layer.value].weight.detach().numpy().reshape(layer.heads.keys, layer.heads.size, -1)
        output = layer.output_weight.detach().numpy().reshape(layer.heads.queries, layer.heads.size, -1)  # [H, r, d]
        circuits = [np.linalg.norm(values[head // layer.heads.group].T @ own) for head, own in enumerate(output)]
        np.testing.assert_allclose(magnitude(layer), norms * circuits, rtol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_magnitudes_of_narrow_weights_are_those_of_the_same_numbers_in_float64() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    narrow = [magnitude(layer) for layer in prunable_layers(model)]
    for own, layer in zip(narrow, prunable_layers(model.double()), strict=True):
        np.testing.assert_allclose(own, magnitude(layer), rtol=1e-12)
