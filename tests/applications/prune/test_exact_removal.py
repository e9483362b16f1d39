"""A model without heads equals the full model whose heads are gated to zero: outputs, gradients, generation."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo import PrunePlan, prune  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from tests.applications.prune.prunable_models import (  # noqa: E402
    EAGER_ONLY,
    GENERATING,
    MODELS,
    assert_close,
    gated,
    inputs_for,
    removed_heads,
    tiny_model,
)

CASES = [(kind, "eager", True) for kind in MODELS] + [
    (kind, "sdpa", False) for kind in MODELS if kind not in EAGER_ONLY
]
HIDDEN = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")


def small_model(model: Any, heads: list[str]) -> Any:
    return prune(model, PrunePlan.from_heads(model, heads), refit=False)


@torch.no_grad()
def assert_same_outputs(small: Any, model: Any, heads: list[str], batch: dict[str, Any]) -> None:
    full = model(**batch)
    with gated(model, heads):
        expected = model(**batch, output_hidden_states=True)
    found = small(**batch, output_hidden_states=True)
    assert_close(found.logits, expected.logits)
    for name in HIDDEN:
        for one, other in zip(found.get(name) or (), expected.get(name) or (), strict=True):
            assert_close(one, other)
    assert (full.logits - expected.logits).abs().max() > 0.01 * expected.logits.abs().max()  # the heads matter


@pytest.mark.parametrize(("kind", "attention", "padded"), CASES)
def test_outputs_are_those_of_the_model_whose_heads_are_gated(kind: str, attention: str, padded: bool) -> None:
    """Without a mask, SDPA masks the future by a flag of the module; it must survive."""
    model, heads, batch = tiny_model(kind, attention), removed_heads(kind), inputs_for(kind, padded)
    if not padded:
        batch.pop("attention_mask", None)
    before = copy.deepcopy(model.state_dict())
    assert_same_outputs(small_model(model, heads), model, heads, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # the given one stays


@pytest.mark.parametrize("kind", ["albert", "gpt2", "gpt_neox", "llama", "phi3", "t5"])
def test_gradients_of_the_weights_that_stay(kind: str) -> None:
    model, heads, batch = tiny_model(kind), removed_heads(kind), inputs_for(kind)
    small = small_model(model, heads)
    targets = torch.randn(model(**batch).logits.shape, generator=torch.Generator().manual_seed(2))
    with gated(model, heads):
        (model(**batch).logits * targets).sum().backward()
    (small(**batch).logits * targets).sum().backward()
    full, cut = dict(model.named_parameters()), 0
    for name, weight in small.named_parameters():
        expected = full[name].grad
        assert (weight.grad is None) == (expected is None)
        if weight.shape != full[name].shape:
            cut += 1
        elif expected is not None and float(expected.abs().max()) > 1e-3:  # no softmax depends on the bias of its keys
            assert_close(weight.grad, expected, 2e-5)
    assert cut >= 4


@pytest.mark.parametrize(
    ("kind", "cache"), [(kind, "static" if kind in ("llama", "t5", "gemma2") else None) for kind in GENERATING]
)
def test_generation_with_a_cache(kind: str, cache: str | None) -> None:
    model, heads = tiny_model(kind, "eager" if kind in EAGER_ONLY else "sdpa"), removed_heads(kind)
    small = small_model(model, heads)
    batch = inputs_for(kind, padded=False)
    batch.pop("decoder_input_ids", None)
    options = {
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
        "cache_implementation": cache,
    }
    with gated(model, heads):
        expected = model.generate(**batch, **options)
    found = small.generate(**batch, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.logits) == 6
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert_close(one, other)


def test_the_cache_shrinks_with_the_key_heads() -> None:
    model = tiny_model("llama", "sdpa")
    ids = {"input_ids": torch.arange(3, 12)[None]}
    small = small_model(model, removed_heads("llama"))  # layer 1 loses a whole group
    caches = [one(**ids, use_cache=True).past_key_values for one in (model, small)]
    sizes = [[tuple(layer.keys.shape) for layer in cache.layers] for cache in caches]
    assert sizes == [[(1, 2, 9, 6), (1, 2, 9, 6)], [(1, 2, 9, 6), (1, 1, 9, 6)]]


@pytest.mark.parametrize("kind", ["llama", "phi3", "t5"])
def test_copies_pickles_and_a_later_choice_of_attention(kind: str) -> None:
    model, heads, batch = tiny_model(kind, "sdpa"), removed_heads(kind), inputs_for(kind)
    small = small_model(model, heads)
    for one in (small, copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        one.set_attn_implementation("eager")
        model.set_attn_implementation("eager")
        assert_same_outputs(one, model, heads, batch)
        attentions = one(**batch, output_attentions=True)
        assert (attentions.get("attentions") or attentions.get("encoder_attentions"))[1] is not None
        one.set_attn_implementation("sdpa")
        model.set_attn_implementation("sdpa")
        assert_same_outputs(one, model, heads, batch)
    assert small.config._attn_implementation == "sdpa"


def test_attention_implementations_that_were_not_compared_are_refused() -> None:
    t5 = small_model(tiny_model("t5", "sdpa"), removed_heads("t5"))
    t5.encoder.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(InputError, match="flash_attention_2: not supported by a pruned layer with a position bias"):
        t5.encoder.block[0].layer[0].SelfAttention(torch.randn(1, 9, 32))


@pytest.mark.slow  # transformers compiles the mask
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_flex_attention(kind: str) -> None:
    model = tiny_model(kind, "sdpa")
    heads = ["L0H0", "L0H1", "L0H2"] if kind == "llama" else removed_heads(kind)  # a whole group
    small, batch = small_model(model, heads), inputs_for(kind)
    for one in (model, small):
        one.set_attn_implementation("flex_attention")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends to compile it
        assert_same_outputs(small, model, heads, batch)
