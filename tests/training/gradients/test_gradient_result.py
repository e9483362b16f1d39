"""Results computed from the terms, the restored state of the model, and the messages for bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attngeo.errors import InputError
from attngeo.training.gradients.gradient_terms import gradient_terms
from tests.training.gradients.gradient_models import GROUPED, assert_same, labelled_batch, model_with_loss
from tests.weights.dense_scores import directionality, symmetry


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_roles_add_up_to_the_update(kind: str) -> None:
    for head in gradient_terms(model_with_loss(kind), labelled_batch(kind)):
        update = head.update.dense()
        for role in (head.context, head.prediction):
            assert_same(role.share.sum(), 1.0)
            tokens = np.einsum("sna,snb->snab", role.column, role.row)
            assert_same(tokens.sum((0, 1)), update)
            assert_same(role.norm, np.linalg.norm(tokens, axis=(2, 3)))
            assert_same(role.share, (tokens * update).sum((2, 3)) / (update**2).sum())
        assert_same(head.context.row, head.x, 0)  # its own vector in the row space, a mixture in the column space
        assert_same(head.prediction.column, head.x, 0)


def test_scores_equal_those_of_the_dense_update() -> None:
    terms = gradient_terms(model_with_loss("llama"), labelled_batch("llama"))
    for head, scores in zip(terms, terms.scores, strict=True):
        update = -head.gradient()
        assert scores.label == head.label
        assert_same(scores.norm, np.linalg.norm(update))
        assert_same(scores.symmetry, symmetry(update))
        assert_same(scores.directionality, directionality(update))
        rows, columns = np.linalg.norm(update, axis=1), np.linalg.norm(update, axis=0)
        assert_same(scores.row_spread, rows.std(ddof=1) / rows.mean())
        assert_same(scores.column_spread, columns.std(ddof=1) / columns.mean())
        assert scores.pairing == 0  # under a causal mask no two positions attend to each other
    assert terms.frame.columns[0] == "label" and terms.frame.height == 8


def test_pairing_is_1_for_equal_and_minus_1_for_opposite_terms() -> None:
    head = gradient_terms(model_with_loss("bert"), labelled_batch("bert"))["L0H1"]
    even = head.beta + head.beta.swapaxes(1, 2)
    odd = head.beta - head.beta.swapaxes(1, 2)
    for beta, expected in ((even, 1.0), (odd, -1.0)):
        paired = replace(head, beta=beta)
        assert abs(paired.scores.pairing - expected) < 1e-12
        assert abs(paired.scores.symmetry - expected) < 1e-10  # equal terms make a symmetric update


@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "qwen3", "opt"])
def test_change_is_the_first_order_part_of_a_gradient_descent_step(kind: str) -> None:
    eta = 0.3
    before = gradient_terms(model_with_loss(kind), labelled_batch(kind))
    model = model_with_loss(kind)
    model(**labelled_batch(kind)).loss.backward()
    torch.optim.SGD(model.parameters(), lr=eta).step()
    after = gradient_terms(model, labelled_batch(kind))
    for old, new in zip(before, after, strict=True):
        assert old.weights is not None
        second = eta**2 * old.weights.query_gradient @ old.weights.key_gradient.T
        assert_same(old.change(eta).dense() + second, new.form.dense() - old.form.dense())


def test_head_labels_and_requested_layers() -> None:
    model = model_with_loss("t5")
    terms = gradient_terms(model, labelled_batch("t5"))
    assert terms.labels[:2] == ("encoder L0H0", "encoder L0H1") and terms.labels[-1] == "decoder L1H3"
    assert len(terms) == 16 and terms["decoder L1H3"].stack == "decoder"
    second = gradient_terms(model_with_loss("bert"), labelled_batch("bert"), layers=[1])
    assert second.labels == ("L1H0", "L1H1", "L1H2", "L1H3")
    assert_same(
        second["L1H2"].beta, gradient_terms(model_with_loss("bert"), labelled_batch("bert"))["L1H2"].beta, 1e-13
    )
    with pytest.raises(InputError, match="head 'L9H0': expected one of L1H0 … L1H3"):
        second["L9H0"]
    assert repr(second).startswith("GradientTerms(loss ") and "4 heads in 1 layers, 3 × 9 tokens" in repr(second)


def test_padding_contributes_nothing_and_sequences_add_up() -> None:
    model, both = model_with_loss("bert"), labelled_batch("bert")

    def summed(output: Any) -> Any:
        return output.logits[:, :4].square().sum()

    inputs = {name: both[name] for name in ("input_ids", "attention_mask")}
    terms = gradient_terms(model, inputs, loss=summed)
    beta = terms.layers[1].beta
    assert not beta[2, :, :, 4:].any() and not beta[1, :, :, 6:].any()  # no query attends to padding
    assert not beta[:, :, 4:].any()  # the loss does not depend on these queries of the last layer
    alone = [
        gradient_terms(model, {name: value[row : row + 1, :length] for name, value in inputs.items()}, loss=summed)
        for row, length in enumerate((9, 6, 4))
    ]
    for label in terms.labels:
        assert_same(terms[label].gradient(), sum(one[label].gradient() for one in alone))


def test_the_state_of_the_model_is_restored() -> None:
    model = model_with_loss("gpt2", "sdpa").train()
    model.transformer.h[1].eval()
    model.transformer.wte.weight.requires_grad_(False)
    weight = model.transformer.h[0].attn.c_attn.weight
    weight.grad = kept = torch.ones_like(weight)
    modes = [module.training for module in model.modules()]
    wants = [value.requires_grad for value in model.parameters()]
    gradient_terms(model, labelled_batch("gpt2"))
    for bad in ({"input_ids": torch.tensor([[1, 999]])}, {"input_ids": torch.tensor([[1, 2]])}):
        with pytest.raises(InputError):
            gradient_terms(model, bad)
    assert model.config._attn_implementation == "sdpa"
    assert [module.training for module in model.modules()] == modes
    assert [value.requires_grad for value in model.parameters()] == wants
    assert weight.grad is kept and bool((kept == 1).all())
    assert all(value.grad is None for value in model.parameters() if value is not weight)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_dropout_frozen_weights_no_grad_and_wrappers_do_not_change_the_result() -> None:
    expected = gradient_terms(model_with_loss("gpt2"), labelled_batch("gpt2"))
    frozen = model_with_loss("gpt2").train().requires_grad_(False)
    with torch.no_grad():
        found = gradient_terms(frozen, labelled_batch("gpt2"))
    model = model_with_loss("gpt2")
    batch = labelled_batch("gpt2")
    with torch.inference_mode():
        again = gradient_terms(model, batch)
    wrapped = gradient_terms(torch.nn.DataParallel(model_with_loss("gpt2")), labelled_batch("gpt2"))
    for terms in (found, again, wrapped):
        assert terms.loss == expected.loss
        for one, other in zip(terms, expected, strict=True):
            assert_same(one.gradient(), other.gradient(), 1e-13)
    assert not any(value.requires_grad for value in frozen.parameters())


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize(("kind", "dtype", "tolerance"), [("llama", torch.float32, 1e-4), ("opt", torch.bfloat16, 0.2)])
def test_float32_and_bfloat16_models_agree_with_float64(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    exact = gradient_terms(model_with_loss(kind, "sdpa"), labelled_batch(kind))
    with torch.backends.mkldnn.flags(enabled=False):  # some processors claim bfloat16 support and lack it
        terms = gradient_terms(model_with_loss(kind, "sdpa", dtype), labelled_batch(kind))
    assert terms.layers[0].beta.dtype == np.float32
    for one, other in zip(terms, exact, strict=True):
        assert_same(one.gradient(), other.gradient(), tolerance)
        assert one.scale == other.scale


def test_autocast_narrows_only_the_model() -> None:
    """Norms return float32 queries to bfloat16 products; the sums computed from them stay in float32."""
    model = model_with_loss("qwen3", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = gradient_terms(model, labelled_batch("qwen3"))
    assert not torch.is_autocast_enabled("cpu")
    for head, exact in zip(terms, gradient_terms(model, labelled_batch("qwen3")), strict=True):
        assert head.beta.dtype == np.float32 and head.weights is not None
        assert head.weights.query_gradient.dtype == np.float32
        assert_same(head.gradient(), exact.gradient(), 0.1)
        sum_of_terms = -head.scale * np.einsum("sij,sia,sjb->ab", head.beta, head.x, head.x)
        assert_same(head.gradient(), sum_of_terms, 1e-5)


def test_attention_with_more_than_scaled_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.models.bert.modeling_bert as modeling

    plain = modeling.eager_attention_forward

    def normalised(module: Any, query: Any, *rest: Any, **kwargs: Any) -> Any:
        return plain(module, query / query.norm(dim=-1, keepdim=True), *rest, **kwargs)

    monkeypatch.setattr(modeling, "eager_attention_forward", normalised)
    with pytest.raises(InputError, match="does more with its queries and keys than scaled products"):
        gradient_terms(model_with_loss("bert"), labelled_batch("bert"))


NO_LOSS = {"labels": torch.full((3, 9), -100)}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("text", {}, "batch: expected a mapping of names to tensors"),
        ({"labels": None}, {}, "batch: no labels, so there is no loss|computes no loss from its labels"),
        (NO_LOSS, {}, r"loss: nan on this batch, expected a finite number"),
        ({}, {"layers": [0, 5]}, "no layer 5; layers are numbered from 0 to 1"),
        ({}, {"loss": lambda output: output.logits}, r"loss: \[3, 9, 50\], expected one number"),
    ],
)
def test_bad_input_is_refused_with_a_reason(change: Any, options: dict[str, Any], message: str) -> None:
    batch = labelled_batch("bert") | change if isinstance(change, dict) else change
    with pytest.raises(InputError, match=message):
        gradient_terms(model_with_loss("bert"), batch, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_with_loss("bert").to("meta"), "its weights are on the meta device and have no values yet"),
        (lambda: torch.nn.Linear(2, 2), "Linear: not a transformers model"),
        (
            lambda: tf.XLNetLMHeadModel(tf.XLNetConfig(vocab_size=50, d_model=32, n_layer=1, n_head=4, d_inner=40)),
            "model type xlnet: attention does not go through",
        ),
        (  # computes attention twice, with half of the values each time
            lambda: tf.DiffLlamaForCausalLM(tf.DiffLlamaConfig(**GROUPED)),
            r"diffllama: model\.layers\.0\.self_attn computes attention in windows or blocks",
        ),
    ],
)
def test_models_without_such_terms_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gradient_terms(make(), labelled_batch("bert"))


def test_queries_and_keys_of_two_sequences_are_refused() -> None:
    model = model_with_loss("bert")
    key = model.bert.encoder.layer[1].attention.self.key
    key.register_forward_pre_hook(lambda _, args: (args[0].flip(1),))
    with pytest.raises(InputError, match=r"layer\.1\.attention\.self computes queries and keys from different vectors"):
        gradient_terms(model, labelled_batch("bert"))


def test_padding_outside_every_window_does_not_give_nan() -> None:
    """Eager attention of a float64 model returns NaN there by itself; fused attention does not, and gives the same."""
    terms = gradient_terms(model_with_loss("modernbert", "eager"), labelled_batch("bert"))
    fused = model_with_loss("modernbert", "sdpa")
    fused(**labelled_batch("bert")).loss.backward()
    for layer, module in zip(terms.layers, fused.model.layers, strict=True):
        assert layer.weights is not None
        own = module.attn.Wqkv.weight.grad.reshape(3, 4, 8, 32).mT
        assert_same(layer.weights.query_gradient, own[0], 1e-5)  # eager attention rounds its softmax to float32
        assert_same(layer.weights.key_gradient, own[1], 1e-5)
