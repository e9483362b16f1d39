"""What is read off the terms, that the model is left as it was, and what bad input is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import attngeo.dynamics.gradients.result as result
from attngeo.dynamics.gradients.gradient_terms import gradient_terms
from attngeo.errors import InputError
from tests.dynamics.gradients.gradient_models import GROUPED, assert_same, batch, made
from tests.weights.dense_scores import directionality, symmetry


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "albert"])
def test_roles_add_up_to_the_update(kind: str) -> None:
    for head in gradient_terms(made(kind), batch(kind)):
        update = head.update.dense()
        for role in (head.context, head.prediction):
            assert_same(role.share.sum(), 1.0)
            tokens = np.einsum("sna,snb->snab", role.column, role.row)
            assert_same(tokens.sum((0, 1)), update)
            assert_same(role.norm, np.linalg.norm(tokens, axis=(2, 3)))
            assert_same(role.share, (tokens * update).sum((2, 3)) / (update**2).sum())
        assert_same(head.context.row, head.x, 0)  # one direction in the row space, many in the column space
        assert_same(head.prediction.column, head.x, 0)


def test_scores_are_those_of_the_dense_update() -> None:
    terms = gradient_terms(made("llama"), batch("llama"))
    for head, scores in zip(terms, terms.scores, strict=True):
        update = -head.gradient()
        assert scores.label == head.label
        assert_same(scores.norm, np.linalg.norm(update))
        assert_same(scores.symmetry, symmetry(update))
        assert_same(scores.directionality, directionality(update))
        rows, columns = np.linalg.norm(update, axis=1), np.linalg.norm(update, axis=0)
        assert_same(scores.row_spread, rows.std(ddof=1) / rows.mean())
        assert_same(scores.column_spread, columns.std(ddof=1) / columns.mean())
        assert scores.pairing == 0  # no pair of positions sees each other both ways
    assert terms.frame.columns[0] == "label" and terms.frame.height == 8


def test_pairing_tells_alike_from_opposite() -> None:
    head = gradient_terms(made("bert"), batch("bert"))["L0H1"]
    even = head.beta + head.beta.swapaxes(1, 2)
    odd = head.beta - head.beta.swapaxes(1, 2)
    for beta, expected in ((even, 1.0), (odd, -1.0)):
        fields = {name: getattr(head, name) for name in head.__dataclass_fields__} | {"beta": beta}
        paired = result.HeadTerms(**fields)
        assert abs(paired.scores.pairing - expected) < 1e-12
        assert abs(paired.scores.symmetry - expected) < 1e-10  # alike terms make a symmetric update


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5", "qwen3", "neox", "opt"])
def test_change_is_what_a_step_of_gradient_descent_does_to_first_order(kind: str) -> None:
    eta = 0.3
    before = gradient_terms(made(kind), batch(kind))
    model = made(kind)
    model(**batch(kind)).loss.backward()
    torch.optim.SGD(model.parameters(), lr=eta).step()
    after = gradient_terms(model, batch(kind))
    for old, new in zip(before, after, strict=True):
        assert old.weights is not None
        second = eta**2 * old.weights.query_gradient @ old.weights.key_gradient.T
        assert_same(old.change(eta).dense() + second, new.form.dense() - old.form.dense())


def test_change_without_bias_rotation_and_shared_keys_needs_the_gradient_alone() -> None:
    """δM = −η(G W_kW_kᵀ + W_qW_qᵀ G)."""
    for head in gradient_terms(made("t5"), batch("t5")):
        assert head.weights is not None
        g, query, key = head.gradient(), head.weights.query, head.weights.key
        assert_same(head.weights.query_gradient, g @ key)
        assert_same(head.weights.key_gradient, g.T @ query)
        assert_same(head.change(0.01).dense(), -0.01 * (g @ key @ key.T + query @ query.T @ g))


def test_the_heads_of_a_group_read_its_own_key() -> None:
    model = made("llama")
    terms = gradient_terms(model, batch("llama"))
    attention = model.model.layers[1].self_attn
    query, key = (part.weight.detach().view(-1, 8, 32).numpy() for part in (attention.q_proj, attention.k_proj))
    for head, group in enumerate((0, 0, 1, 1)):
        one = terms[f"L1H{head}"]
        assert_same(one.form.dense(), query[head].T @ key[group], 1e-14)
        assert np.array_equal(one.key, terms.layers[1].key[:, group])
    assert np.abs(terms["L1H1"].key - terms["L1H2"].key).max() > 0.1


def test_labels_and_layers() -> None:
    model = made("t5")
    terms = gradient_terms(model, batch("t5"))
    assert terms.labels[:2] == ("encoder L0H0", "encoder L0H1") and terms.labels[-1] == "decoder L1H3"
    assert len(terms) == 16 and terms["decoder L1H3"].stack == "decoder"
    second = gradient_terms(made("bert"), batch("bert"), layers=[1])
    assert second.labels == ("L1H0", "L1H1", "L1H2", "L1H3")
    assert_same(second["L1H2"].beta, gradient_terms(made("bert"), batch("bert"))["L1H2"].beta, 1e-13)
    with pytest.raises(InputError, match="head 'L9H0': not among L1H0 … L1H3"):
        second["L9H0"]
    assert repr(second).startswith("GradientTerms(loss ") and "4 heads in 1 layers, 3 × 9 tokens" in repr(second)


def test_padding_adds_nothing_and_sequences_add_up() -> None:
    model, both = made("bert"), batch("bert")

    def summed(output: Any) -> Any:
        return output.logits[:, :4].square().sum()

    inputs = {name: both[name] for name in ("input_ids", "attention_mask")}
    terms = gradient_terms(model, inputs, loss=summed)
    beta = terms.layers[1].beta
    assert not beta[2, :, :, 4:].any() and not beta[1, :, :, 6:].any()  # nothing is read from padding
    assert not beta[:, :, 4:].any()  # nothing is asked of what the loss does not see, in the last layer
    alone = [
        gradient_terms(model, {name: value[row : row + 1, :length] for name, value in inputs.items()}, loss=summed)
        for row, length in enumerate((9, 6, 4))
    ]
    for label in terms.labels:
        assert_same(terms[label].gradient(), sum(one[label].gradient() for one in alone))


def test_the_model_is_left_as_it_was() -> None:
    model = made("gpt2", "sdpa").train()
    model.transformer.h[1].eval()
    model.transformer.wte.weight.requires_grad_(False)
    weight = model.transformer.h[0].attn.c_attn.weight
    weight.grad = kept = torch.ones_like(weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    wants = [value.requires_grad for value in model.parameters()]
    random = torch.random.get_rng_state()
    gradient_terms(model, batch("gpt2"))
    for bad in ({"input_ids": torch.tensor([[1, 999]])}, {"input_ids": torch.tensor([[1, 2]])}):
        with pytest.raises(InputError):
            gradient_terms(model, bad)
    assert model.config._attn_implementation == "sdpa"
    assert [module.training for module in model.modules()] == modes
    assert [value.requires_grad for value in model.parameters()] == wants
    assert weight.grad is kept and bool((kept == 1).all())
    assert all(value.grad is None for value in model.parameters() if value is not weight)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_dropout_is_off_and_frozen_models_and_no_grad_do_not_matter() -> None:
    expected = gradient_terms(made("gpt2"), batch("gpt2"))
    frozen = made("gpt2").train().requires_grad_(False)
    with torch.no_grad():
        found = gradient_terms(frozen, batch("gpt2"))
    model = made("gpt2")
    with torch.inference_mode():
        again = gradient_terms(model, batch("gpt2"))
    for terms in (found, again):
        assert terms.loss == expected.loss
        for one, other in zip(terms, expected, strict=True):
            assert_same(one.gradient(), other.gradient(), 1e-13)
    assert not any(value.requires_grad for value in frozen.parameters())


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("kind", ["llama", "opt"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_float32_and_bfloat16(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    exact = gradient_terms(made(kind, "sdpa"), batch(kind))
    with torch.backends.mkldnn.flags(enabled=False):  # some processors promise bfloat16 and have none
        terms = gradient_terms(made(kind, "sdpa", dtype), batch(kind))
    assert terms.layers[0].beta.dtype == np.float32
    for one, other in zip(terms, exact, strict=True):
        assert_same(one.gradient(), other.gradient(), tolerance)
        assert one.scale == other.scale


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_under_autocast_only_the_model_is_narrow(kind: str) -> None:
    """Norms give float32 queries to bfloat16 products; the sums made of them stay in float32."""
    model = made(kind, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = gradient_terms(model, batch(kind))
    assert not torch.is_autocast_enabled("cpu")
    for head, exact in zip(terms, gradient_terms(model, batch(kind)), strict=True):
        assert head.beta.dtype == np.float32 and head.weights is not None
        assert head.weights.query_gradient.dtype == np.float32
        assert_same(head.gradient(), exact.gradient(), 0.1)
        made_of = -head.scale * np.einsum("sij,sia,sjb->ab", head.beta, head.x, head.x)
        assert_same(head.gradient(), made_of, 1e-5)


def test_a_wrapped_model_is_unwrapped() -> None:
    terms = gradient_terms(torch.nn.DataParallel(made("bert")), batch("bert"))
    assert_same(terms["L0H0"].beta, gradient_terms(made("bert"), batch("bert"))["L0H0"].beta, 1e-13)


def test_attention_that_does_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.models.bert.modeling_bert as modeling

    plain = modeling.eager_attention_forward

    def normalised(module: Any, query: Any, *rest: Any, **kwargs: Any) -> Any:
        return plain(module, query / query.norm(dim=-1, keepdim=True), *rest, **kwargs)

    monkeypatch.setattr(modeling, "eager_attention_forward", normalised)
    with pytest.raises(InputError, match="does more with its queries and keys than scaled products"):
        gradient_terms(made("bert"), batch("bert"))


def test_bad_input() -> None:
    model, inputs = made("bert"), batch("bert")
    without = {name: value for name, value in inputs.items() if name != "labels"}
    with pytest.raises(InputError, match="batch: no labels, so there is no loss; give labels, or a function"):
        gradient_terms(model, without)
    with pytest.raises(InputError, match=r"makes no loss of its labels|cannot run on"):
        gradient_terms(model.bert, inputs)
    with pytest.raises(InputError, match="none of the layers asked for exist; they run from 0 to 1"):
        gradient_terms(model, inputs, layers=[5])
    with pytest.raises(InputError, match="layers: none were asked for"):
        gradient_terms(model, inputs, layers=[])
    with pytest.raises(InputError, match="layers: expected numbers of layers from 0 up, got '1'"):
        gradient_terms(model, inputs, layers="1")  # type: ignore[arg-type]
    assert [layer.layer for layer in gradient_terms(model, inputs, layers=1).layers] == [1]
    with pytest.raises(InputError, match="batch: a mapping of names to tensors expected"):
        gradient_terms(model, "text")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"loss: nan on this batch"):
        gradient_terms(model, inputs, loss=lambda output: output.loss * float("nan"))
    with pytest.raises(InputError, match=r"loss: nan on this batch"):
        gradient_terms(model, inputs | {"labels": torch.full_like(inputs["labels"], -100)})
    with pytest.raises(InputError, match=r"loss: \[3, 9, 50\], one number"):
        gradient_terms(model, inputs, loss=lambda output: output.logits)
    with pytest.raises(InputError, match=r"loss: \[\], one number that depends"):
        gradient_terms(model, inputs, loss=lambda output: output.loss.detach())
    with torch.inference_mode():
        fixed = made("bert")
    with pytest.raises(InputError, match="BertForMaskedLM: its weights were made in inference mode"):
        gradient_terms(fixed, inputs)
    with pytest.raises(InputError, match="Linear: not a transformers model"):
        gradient_terms(torch.nn.Linear(2, 2), inputs)


def test_models_that_cannot_be_heard_are_named() -> None:
    from transformers import XLNetConfig, XLNetLMHeadModel

    model = XLNetLMHeadModel(XLNetConfig(vocab_size=50, d_model=32, n_layer=1, n_head=4, d_inner=40))
    with pytest.raises(InputError, match="model type xlnet: attention does not go through"):
        gradient_terms(model, batch("bert"))


def test_attention_in_pieces_or_of_two_sequences_is_refused() -> None:
    model = DiffLlamaForCausalLM(DiffLlamaConfig(**GROUPED))  # attends twice, half of the values each time
    with pytest.raises(InputError, match=r"diffllama: model\.layers\.0\.self_attn attends piece by piece"):
        gradient_terms(model, batch("llama"))
    model = made("bert")
    key = model.bert.encoder.layer[1].attention.self.key
    key.register_forward_pre_hook(lambda _, given: (given[0].flip(1),))
    with pytest.raises(InputError, match=r"layer\.1\.attention\.self makes queries and keys of different vectors"):
        gradient_terms(model, batch("bert"))


def test_padding_that_sees_nothing_behind_a_window() -> None:
    """Plain attention of a float64 model gives NaN there by itself; fused attention does not, and says the same."""
    terms = gradient_terms(made("modernbert", "eager"), batch("bert"))
    fused = made("modernbert", "sdpa")
    fused(**batch("bert")).loss.backward()
    for layer, module in zip(terms.layers, fused.model.layers, strict=True):
        assert layer.weights is not None
        own = module.attn.Wqkv.weight.grad.reshape(3, 4, 8, 32).mT
        assert_same(layer.weights.query_gradient, own[0], 1e-5)  # plain attention rounds its softmax to float32
        assert_same(layer.weights.key_gradient, own[1], 1e-5)
