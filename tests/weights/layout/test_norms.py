"""The norm before an attention: divided by its gain, what a live model's queries read has root mean square 1."""

from __future__ import annotations

from typing import Any

import pytest

import attngeo
from tests.weights import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def gemma2() -> Any:
    """Return a Gemma 2, whose norms store gain − 1."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40)).eval()  # fmt: skip


# Name → model, and whether its norm subtracts the mean.
MODELS = {
    "bert": (tiny_models.bert, True),
    "gpt2": (tiny_models.gpt2, True),
    "llama": (tiny_models.llama, False),
    "gemma2": (gemma2, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gain_is_that_of_the_vectors_that_queries_read(name: str) -> None:
    make, centred = MODELS[name]
    model = make()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(50)  # so that the ε of a norm does not matter
        for path, weight in model.named_parameters():
            if weight.dim() == 1 and path.endswith("weight"):  # the gain of a norm
                weight.add_(0.3 * torch.randn(weight.shape, generator=draw))
    layers = list(attngeo.attention_layers(model, norms=True))
    read: dict[str, Any] = {}
    for weights in layers:
        path = weights.tensors[0].removesuffix(".weight")
        keep = lambda _, inputs, path=path: read.update({path: inputs[0].detach()})  # noqa: E731
        model.get_submodule(path).register_forward_pre_hook(keep)
    with torch.no_grad():
        model(input_ids=torch.arange(5, 17)[None])
    assert len(layers) == len(read) == 2
    for weights, x in zip(layers, read.values(), strict=True):  # [1, 12, d]
        assert weights.norm is not None and weights.norm.centred is centred
        unit = x[0] / torch.from_numpy(weights.norm.gain)
        assert torch.allclose(unit.square().mean(1), torch.ones(12), atol=1e-3)
        if centred:
            assert unit.mean(1).abs().max() < 1e-5
