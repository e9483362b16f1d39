"""Every initialisation keeps what it promises, changes nothing else, and is refused without a trace where it cannot."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import attngeo
from attngeo.errors import InputError, LayoutError
from attngeo.training.initialise import INITIALISATIONS, initialise_
from tests.weights import tiny_models

pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*a model with rotary embedding and a norm before its attention:UserWarning"),
]

SCALED = ("symmetric", "independent", "negative", "rotated", "self-attending", "skewed", "indefinite",
          "large-symmetric", "small-skewed")  # fmt: skip
OWN_SCALE = tuple(name for name in INITIALISATIONS[1:] if name not in SCALED)
DRAWING = ("rotated", "skewed", "small-skewed", *OWN_SCALE)
SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def symmetry_scores(ref: Any) -> dict[bool, list[float]]:
    """Return {cross: symmetry of every layer and head}, as `attngeo.score` finds it."""
    frame = attngeo.score(ref, nulls=False, folded=False).frame
    return {
        bool(cross): [s for s, c in zip(frame["symmetry"], frame["cross"], strict=True) if c == cross]
        for cross in set(frame["cross"])
    }


def unchanged_since_now(model: nn.Module) -> Callable[[], bool]:
    """Return a function that tells whether every parameter is still what it is now."""
    before = {name: value.clone() for name, value in model.named_parameters()}
    return lambda: all(value.equal(before[name]) for name, value in model.named_parameters())


def factors(model: Any) -> tuple[Tensor, Tensor]:
    """Return queries and keys [layers, heads, d, r] in float64."""
    layers = list(attngeo.attention_layers(model))
    query, key = ([torch.from_numpy(getattr(layer, side)) for layer in layers] for side in ("query", "key"))
    return torch.stack(query).double(), torch.stack(key).double()


def symmetry(m: Tensor) -> Tensor:
    return (m * m.mT).sum((-1, -2)) / m.square().sum((-1, -2))


def trace(m: Tensor) -> Tensor:
    return m.diagonal(dim1=-2, dim2=-1).sum(-1)


# ---- the symmetric initialisation


# Ways to store queries and keys that `tiny_models` does not have.
TOKENS = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
STORED: dict[str, Callable[[], nn.Module]] = {
    "codegen": lambda: tf.CodeGenModel(
        tf.CodeGenConfig(vocab_size=60, n_embd=32, n_head=4, n_layer=2, n_positions=40, rotary_dim=4)
    ),
    "phi3": lambda: tf.Phi3Model(tf.Phi3Config(**SIZE, **TOKENS, num_key_value_heads=2)),
    "falcon": lambda: tf.FalconModel(tf.FalconConfig(**SIZE, new_decoder_architecture=True, num_kv_heads=2)),
    "qwen3_next": lambda: tf.Qwen3NextModel(
        tf.Qwen3NextConfig(**SIZE, **TOKENS, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
                           num_key_value_heads=2, head_dim=8, layer_types=["full_attention"] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("family", tiny_models.FAMILIES | STORED)
@pytest.mark.parametrize("scale", [None, "unit"])
def test_forms_become_symmetric_and_nothing_else_changes(family: str, scale: Any) -> None:
    make = (tiny_models.FAMILIES | STORED)[family]
    model = make()
    before = copy.deepcopy(model)
    result = attngeo.symmetric_init_(model, scale=scale)
    scores = symmetry_scores(model)
    assert all(abs(s - 1) < 1e-6 for s in scores[False])
    written = {name for layer in result.layers for name in layer.tensors}
    old = dict(before.named_parameters())
    assert all(torch.equal(value, old[name]) for name, value in model.named_parameters() if name not in written)
    layers = [[one for one in attngeo.attention_layers(made) if not one.cross] for made in (model, before)]
    for new, was, done in zip(*layers, result.layers, strict=True):
        # Within a fused tensor, what is neither query nor key keeps its bits; with scale None the keys do too.
        changed = sum(int((model.get_parameter(name) != old[name]).sum()) for name in done.tensors)
        assert changed == new.query.size + (0 if scale is None else new.key.size)
        std = float((was.key.astype(float) ** 2).mean() ** 0.5)
        assert done.std == pytest.approx((std, std if scale is None else 1 / math.sqrt(32)), rel=1e-6)
        assert scale is not None or (new.key == was.key).all()
    if family == "t5":
        assert len(result.cross) == 2 and max(map(abs, scores[True])) < 0.9
        assert {layer.stack for layer in result.layers} == {"encoder", "decoder"}


def test_the_unit_scale_is_the_default_and_the_scale_can_be_kept() -> None:
    default, kept, before = (tiny_models.bert() for _ in range(3))
    assert [layer.std[1] for layer in attngeo.symmetric_init_(default).layers] == pytest.approx([1 / math.sqrt(32)] * 2)
    assert str(attngeo.symmetric_init_(kept, scale="kept")).startswith("symmetric, kept scale: 2 layers (encoder), std")
    for new, was in zip(attngeo.attention_layers(kept), attngeo.attention_layers(before), strict=True):
        assert (new.key == was.key).all() and (new.query == was.key).all()


WARNED: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "llama": (tiny_models.llama, True),
    "learned positions, pre-norm": (tiny_models.gpt2, False),
    "rotary, post-norm": (
        lambda: tf.AutoModel.from_config(tf.CONFIG_MAPPING["nomic_bert"](vocab_size=64, pad_token_id=0, **SIZE)),
        False,
    ),
}


@pytest.mark.parametrize("kind", WARNED)
def test_a_warning_names_models_that_lose_by_it(kind: str) -> None:
    make, warned = WARNED[kind]
    model = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attngeo.symmetric_init_(model, scale="unit")
    messages = [str(one.message) for one in caught if one.category is UserWarning]
    assert len(messages) == warned
    assert all(text.startswith(f"{type(model).__name__}: a model with rotary embedding") for text in messages)


def test_layers_that_share_a_tensor_under_two_names_are_written_once() -> None:
    model, single = tiny_models.bert(), tiny_models.bert(num_hidden_layers=1)
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.query, second.key = first.query, first.key
    single.bert.encoder.layer[0].attention.self.load_state_dict(first.state_dict())
    assert [layer.layer for layer in initialise_(model, "self-attending", scale="unit").layers] == [0]
    initialise_(single, "self-attending", scale="unit")
    assert torch.equal(first.key.weight, single.bert.encoder.layer[0].attention.self.key.weight)


def test_a_module_without_a_config_is_initialised_with_num_heads() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    result = attngeo.symmetric_init_(layer, num_heads=2)
    assert result.layers and torch.equal(layer.self_attn.in_proj_weight[:16], layer.self_attn.in_proj_weight[16:32])


# ---- all initialisations


@pytest.mark.parametrize("name", INITIALISATIONS[1:])
def test_the_same_seed_gives_the_same_weights_and_only_the_promised_ones_change(name: str) -> None:
    scale = "unit" if name in SCALED else None
    once, twice, other, before = (tiny_models.bert() for _ in range(4))
    for model, seed in ((once, 5), (twice, 5), (other, 6)):
        initialise_(model, name, scale=scale, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))
    differ = any(not torch.equal(a, b) for a, b in zip(once.parameters(), other.parameters(), strict=True))
    assert differ == (name in DRAWING)
    changed = {key for key, value in before.named_parameters() if not torch.equal(value, once.get_parameter(key))}
    allowed: tuple[str, ...] = ("query.weight", "key.weight")
    if name == "authors":
        allowed += ("query.bias", "key.bias", "value.weight", "value.bias")
    elif "value" in name:
        allowed += ("value.weight", "attention.output.dense.weight")
    assert all(one.endswith(allowed) for one in changed)
    assert all(any(one.endswith(ending) for one in changed) for ending in allowed)


def test_the_baseline_changes_nothing_and_other_names_are_refused() -> None:
    model = tiny_models.bert()
    unchanged = unchanged_since_now(model)
    assert initialise_(model, "baseline") is None
    with pytest.raises(InputError, match="start 'symetric' does not exist, did you mean 'symmetric'"):
        initialise_(model, "symetric")
    with pytest.raises(InputError, match="start 'x' does not exist; there are baseline, symmetric, "):
        initialise_(model, "x")
    for name in ("baseline", *OWN_SCALE):
        with pytest.raises(InputError, match=f"scale = 'unit': the {name} initialisation has a scale of its own"):
            initialise_(model, name, scale="unit")
    assert unchanged()


def test_controls_keep_what_they_promise() -> None:
    x = torch.randn(50, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    m = {}
    for name in SCALED:
        model = tiny_models.bert(hidden_size=128, num_attention_heads=4)
        initialise_(model, name, scale="unit", seed=3)
        query, key = factors(model)
        m[name] = query @ key.mT  # [layers, heads, d, d]
        if name == "rotated":  # every dimension of the model keeps its norm in the head space
            assert torch.allclose(query.norm(dim=-1), key.norm(dim=-1), rtol=1e-5)
            turns = (torch.linalg.pinv(key) @ query).flatten(0, 1)  # [layers·heads, r, r], S of each head
            eye = torch.eye(32, dtype=turns.dtype)
            assert torch.allclose(turns @ turns.mT, eye, atol=1e-5)
            assert torch.allclose(torch.linalg.det(turns), torch.ones(len(turns), dtype=turns.dtype), atol=1e-4)
            distances = torch.cdist(turns.flatten(1), turns.flatten(1))  # about √(2r) = 8 between two random ones
            assert float((distances + 8 * torch.eye(len(turns))).min()) > 6
    wanted = m["symmetric"]
    assert torch.allclose(m["negative"], -wanted, rtol=1e-5)
    assert symmetry(m["independent"]).abs().max() < 0.1
    assert symmetry(m["rotated"]).abs().max() < 0.2  # of the order of 1/r
    assert torch.allclose(trace(m["self-attending"]), trace(wanted), rtol=1e-4)
    assert symmetry(m["self-attending"]).max() < 0.8
    assert torch.linalg.matrix_rank(m["self-attending"], rtol=1e-4).max() == 32
    diagonal = torch.einsum("nd,lhde,ne->lhn", x, m["skewed"], x)
    assert torch.allclose(diagonal, torch.einsum("nd,lhde,ne->lhn", x, wanted, x), rtol=1e-4)
    assert symmetry(m["skewed"]).abs().max() < 1e-5
    assert symmetry(m["indefinite"]).min() > 1 - 1e-6
    assert (trace(m["indefinite"]) / trace(wanted)).abs().max() < 0.15  # of the order of √(2/(r·d)) = 0.02, per head
    values = torch.linalg.eigvalsh((m["indefinite"] + m["indefinite"].mT) / 2)
    assert int((values > 1e-6).sum(-1).max()) == int((values < -1e-6).sum(-1).max()) == 16
    norm = {name: form.norm(dim=(-1, -2)) for name, form in m.items()}
    assert torch.allclose(norm["indefinite"], norm["symmetric"], rtol=0.15)  # smaller by (1 + r/d)^½
    assert torch.allclose(norm["small-skewed"], norm["symmetric"], rtol=1e-4)
    assert torch.allclose(norm["large-symmetric"], norm["skewed"], rtol=1e-4)
    assert torch.allclose(m["small-skewed"], m["skewed"] / 2**0.5, rtol=1e-4, atol=1e-7)
    assert torch.allclose(m["large-symmetric"], wanted * 2**0.5, rtol=1e-4, atol=1e-7)


def test_the_indefinite_initialisation_is_symmetric_at_every_offset() -> None:
    """Two dimensions that rotate together have the same sign; otherwise it would be symmetric at offset 0 only."""
    model = tiny_models.llama()
    initialise_(model, "indefinite", scale="unit")
    heads = attngeo.score(model, nulls=False, folded=False).frame.drop_nulls("head")
    for score in ("symmetry", "symmetry_rope"):
        assert heads[score].min() > 1 - 1e-6


def test_random_rotations_are_uniform() -> None:
    """The entries of a uniform rotation have mean 0 and variance 1/r; here r = 2 and 512 heads."""
    model = tiny_models.bert(hidden_size=512, num_attention_heads=256)
    initialise_(model, "rotated", scale="unit")
    query, key = factors(model)
    turns = (torch.linalg.pinv(key) @ query).flatten(0, 1)  # [heads, r, r]
    assert float(turns.mean(0).abs().max()) < 5 * (1 / 2 / len(turns)) ** 0.5
    assert float((turns.square().mean(0) - 1 / 2).abs().max()) < 0.08


def test_keys_of_a_head_that_are_all_zero_stay_finite() -> None:
    model = tf.BertModel(tf.BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, vocab_size=9))
    with torch.no_grad():
        model.encoder.layer[0].attention.self.key.weight[:16] = 0
    initialise_(model, "skewed", scale="unit")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_authors_draw_weights_and_biases_as_linear_layers_do() -> None:
    model = tiny_models.bert(hidden_size=128)
    first, _ = initialise_(model, "authors", seed=1).layers
    assert len(first.tensors) == 6 and {name.rpartition(".")[2] for name in first.tensors} == {"weight", "bias"}
    attention = model.bert.encoder.layer[0].attention.self
    assert torch.equal(attention.query.weight, attention.key.weight)
    assert not torch.equal(attention.query.bias, attention.key.bias)
    for weight in (attention.key.weight, attention.value.weight, attention.value.bias):
        assert float(weight.detach().std()) == pytest.approx(
            1 / math.sqrt(3 * 128), rel=0.02 if weight.dim() > 1 else 0.2
        )
        assert 0 < float(weight.detach().abs().max()) <= 1 / math.sqrt(128)


def test_mimetic_forms_are_the_best_approximation_of_their_target() -> None:
    model = tiny_models.bert(hidden_size=64, num_attention_heads=2)
    initialise_(model, "mimetic-0.7-value", seed=torch.Generator().manual_seed(2))
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 8
    u, sigma, v = torch.linalg.svd(0.7 * noise + 0.7 * torch.eye(64, dtype=torch.float64))
    attention = model.bert.encoder.layer[0].attention
    query, key = (getattr(attention.self, side).weight.detach().double()[:32] for side in ("query", "key"))
    assert torch.allclose(query.T @ key, u[:, :32] * sigma[:32] @ v[:32], atol=1e-5)
    product = attention.self.value.weight.detach().T @ attention.output.dense.weight.detach().T  # W_v W_o
    assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.05)


def test_mimetic_writes_values_into_a_fused_tensor() -> None:
    model, without = tiny_models.gpt2(), tiny_models.gpt2()
    initialise_(model, "mimetic-0.3-value")
    initialise_(without, "mimetic-0.3")
    one, other = (each.transformer.h[0].attn for each in (model, without))
    fused = one.c_attn.weight.detach()  # [d, (q, k, v)]
    assert torch.equal(fused[:, :64], other.c_attn.weight[:, :64])
    product = fused[:, 64:].double() @ one.c_proj.weight.detach().double()  # W_v W_o = 0.4 Z − 0.4 I
    rest = product + 0.4 * torch.eye(32, dtype=torch.float64)
    assert 0.9 < float(rest.square().mean().sqrt()) / (0.4 / 32**0.5) < 1.1


# ---- random streams

BOUND = 0.14  # independent draws stay below 0.11 over all lags; a shared stream gives 0.36


def largest_correlation(one: Tensor, other: Tensor) -> float:
    """Return the largest |correlation| of two matrices, read row by row, over all lags between them."""
    a, b = (w.detach().double().flatten() for w in (one, other))
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    n = len(a) + len(b)
    products = torch.fft.irfft(torch.fft.rfft(a, n).conj() * torch.fft.rfft(b, n), n)  # [n], one sum per lag
    return float(products.abs().max()) / min(len(a), len(b))


def correlation_with_other_weights(name: str, seed: Any) -> float:
    """Return the largest correlation of a matrix that an initialisation wrote with one that it did not.

    Every matrix of the model is drawn with a seed that follows from the model's.
    """
    model = tiny_models.bert(hidden_size=64, vocab_size=256)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) * 0.02)
    result = initialise_(model, name, seed=seed)
    written = {tensor for layer in result.layers for tensor in layer.tensors}
    matrices = {key: weight for key, weight in model.named_parameters() if weight.dim() == 2 and len(weight) > 2}
    return max(
        largest_correlation(matrices[key], weight)
        for key in written & matrices.keys()
        for other, weight in matrices.items()
        if other not in written
    )


@pytest.mark.parametrize("name", DRAWING)
def test_what_is_written_correlates_with_no_other_weight(name: str) -> None:
    assert correlation_with_other_weights(name, 0) < BOUND


def test_a_stream_shared_with_the_embeddings_would_be_seen() -> None:
    shared = torch.Generator().manual_seed(0)  # the seed of the first matrix
    assert correlation_with_other_weights("authors", shared) > 2 * BOUND


# ---- what is refused


def broken(path: str, value: float) -> nn.Module:
    """Return a BERT whose second layer cannot be scaled; its first layer could be written."""
    model = tiny_models.bert()
    model.get_parameter(f"bert.encoder.layer.1.attention.self.{path}").data.mul_(value)
    return model


def without_values() -> nn.Module:
    model = tiny_models.bert()
    model.bert.encoder.layer[1].attention.self.value = torch.nn.Identity()
    return model


def parametrised() -> nn.Module:
    model = tiny_models.bert()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    return model


def latent() -> nn.Module:
    return tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=40, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1, n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1,
        moe_intermediate_size=16))  # fmt: skip


REFUSED: list[tuple[Callable[[], nn.Module], str, dict[str, Any], str]] = [
    (
        lambda: broken("key.weight", 0),
        "symmetric",
        {"scale": "unit"},
        r"encoder layer 1 .*: its key weights have std 0\.0, expected a positive number",
    ),
    (lambda: broken("key.weight", math.inf), "symmetric", {}, "its key weights have std inf"),
    (lambda: tiny_models.bert(hidden_size=36), "skewed", {}, "head size 9 is odd; the skewed initialisation"),
    (tiny_models.llama, "mimetic-0.7", {}, "2 query heads share a key head"),
    (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32), "rotated", {}, "initialisation needs the head count"),
    (without_values, "mimetic-0.7-value", {}, "encoder layer 1 .*: no value projection found"),
    (tiny_models.t5, "symmetric", {"stack": "cross"}, "the layers asked for are all cross-attention"),
    (parametrised, "symmetric", {}, r"layer\.0\..*query\.weight: is adapted, or computed from other parameters"),
    (latent, "symmetric", {}, "latent attention; its queries and keys are products"),
    *(
        (tiny_models.bert, "symmetric", {"scale": scale}, "expected 'unit', 'half-unit', 'kept' or a positive number")
        for scale in ("Unit", 0)
    ),
]


@pytest.mark.parametrize(("make", "name", "options", "message"), REFUSED)
def test_what_cannot_be_written_is_named_and_left_unchanged(
    make: Callable[[], nn.Module], name: str, options: dict[str, Any], message: str
) -> None:
    model = make()
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    with pytest.raises((InputError, LayoutError), match=message):
        initialise_(model, name, **options)
    after = {key: value.numpy() for key, value in model.state_dict().items()}
    assert all(np.array_equal(after[key], before[key], equal_nan=True) for key in before)


def test_adapted_queries_and_keys_are_refused_and_other_adapters_do_not_matter() -> None:
    """Beside an adapter the form would not be symmetric; an adapted layer must not be skipped silently either."""

    def adapted(**targets: Any) -> Any:
        return peft.get_peft_model(tiny_models.bert(), peft.LoraConfig(r=4, init_lora_weights=False, **targets))

    for targets in ({"target_modules": ["query", "value"]}, {"target_modules": ["key"], "layers_to_transform": [0]}):
        model = adapted(**targets)
        unchanged = unchanged_since_now(model)
        with pytest.raises(LayoutError, match=r"layer\.0\.attention\.self\.\w+\.weight: is adapted"):
            attngeo.symmetric_init_(model)
        assert unchanged()
    model = adapted(target_modules=["value"])
    assert len(attngeo.symmetric_init_(model).layers) == 2
    assert symmetry_scores(model.unload())[False] == pytest.approx([1] * 10, abs=1e-6)
