"""The rank-1 sum is the gradient of E, and from β, x, q̂, k̂ alone the model's own weight gradients follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    OpenAIPrivacyFilterConfig,
    OpenAIPrivacyFilterForTokenClassification,
    ParakeetEncoder,
    ParakeetEncoderConfig,
)
from transformers.masking_utils import eager_mask

from attngeo.dynamics.gradients.gradient_terms import gradient_terms
from attngeo.errors import LayoutError
from attngeo.live.parameters import live, views
from tests.dynamics.gradients.gradient_models import (
    GROUPED,
    MODELS,
    SCALES,
    SIZES,
    assert_same,
    batch,
    made,
    own_gradients,
)
from tests.live.tiny_live_models import plain_run

NO_SDPA = ("gemma2", "gpt_oss")  # a soft-cap, a sink: transformers has only the plain way


def attentions(kind: str, model: Any) -> dict[str, list[Any]]:
    """Self-attention modules by stack, written out for every architecture."""
    found: dict[str, Any] = {
        "bert": lambda: {"encoder": [layer.attention.self for layer in model.bert.encoder.layer]},
        "gpt2": lambda: {"decoder": [layer.attn for layer in model.transformer.h]},
        "t5": lambda: {
            side: [block.layer[0].SelfAttention for block in getattr(model, side).block]
            for side in ("encoder", "decoder")
        },
        "neox": lambda: {"decoder": [layer.attention for layer in model.gpt_neox.layers]},
        "modernbert": lambda: {"encoder": [layer.attn for layer in model.model.layers]},
        "albert": lambda: {"encoder": [model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention]},
        "opt": lambda: {"decoder": [layer.self_attn for layer in model.model.decoder.layers]},
        "esm": lambda: {"encoder": [layer.attention.self for layer in model.esm.encoder.layer]},
        "bart": lambda: {
            side: [layer.self_attn for layer in getattr(model.model, side).layers] for side in ("encoder", "decoder")
        },
        "vit": lambda: {"encoder": [layer.attention for layer in model.vit.layers]},
    }
    return found.get(kind, lambda: {"decoder": [layer.self_attn for layer in model.model.layers]})()  # type: ignore[no-any-return]


def gradient_of_e(kind: str) -> dict[tuple[str, int], torch.Tensor]:
    """∂L/∂E at E = 0 by autograd: c·X E Xᵀ added to the products, in an attention written for this test alone."""
    model = made(kind, "eager" if kind in NO_SDPA else "sdpa")
    extra: dict[int, tuple[float, torch.Tensor]] = {}
    given: dict[int, torch.Tensor] = {}
    where = {}

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any = None, **kwargs: Any) -> Any:
        many = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(many, 1), value.repeat_interleave(many, 1)
        products = kwargs["scaling"] * query @ key.mT
        if id(module) in extra:
            c, e = extra[id(module)]
            # Detached: at E = 0 nothing flows to x, but a gradient of zeros changes how float32 norms add up.
            x = given[id(module)].detach()[:, None]  # [B, 1, N, d]
            products = products + c * x @ e @ x.mT
        if kwargs.get("softcap"):
            products = kwargs["softcap"] * torch.tanh(products / kwargs["softcap"])
        for more in (kwargs.get("position_bias"), mask):
            products = products if more is None else products + more
        if getattr(module, "sinks", None) is not None:
            sinks = module.sinks.reshape(1, -1, 1, 1).expand(*products.shape[:3], 1)
            products = torch.cat([products, sinks], -1)
        # Gemma has no other way than the plain one, which rounds here.
        shares = products.softmax(-1, dtype=torch.float32 if kind == "gemma2" else None).to(value.dtype)
        shares = shares[..., : key.shape[2]]
        return (shares @ value).transpose(1, 2).contiguous(), shares

    def hear(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given[id(module)] = named["hidden_states"] if "hidden_states" in named else args[0]

    AttentionInterface.register("with_e", attend)
    AttentionMaskInterface.register("with_e", eager_mask)
    for stack, modules in attentions(kind, model).items():
        for layer, module in enumerate(modules):
            e = torch.zeros(4, 32, 32, dtype=torch.float64, requires_grad=True)
            extra[id(module)] = SCALES[kind][layer], e
            where[stack, layer] = e
            module.register_forward_pre_hook(hear, with_kwargs=True)
    model.config._attn_implementation_internal = "with_e"
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation_internal = "with_e"
    found = torch.autograd.grad(model(**batch(kind)).loss, list(where.values()))
    return dict(zip(where, found, strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_the_sum_of_the_terms_is_the_gradient_of_e(kind: str) -> None:
    terms = gradient_terms(made(kind, "eager" if kind in NO_SDPA else "sdpa"), batch(kind))
    expected = gradient_of_e(kind)
    assert {(layer.stack, layer.layer) for layer in terms.layers} == set(expected)
    for layer in terms.layers:
        assert layer.scale == SCALES[kind][layer.layer]
        for head in range(4):
            assert_same(layer.head(head).gradient(), expected[layer.stack, layer.layer][head])
            # The same written out: −c Σ_ij β_ij x_i x_jᵀ.
            sum_of_terms = np.einsum("sij,sia,sjb->ab", layer.beta[:, head], layer.x, layer.x)
            assert_same(-layer.scale * sum_of_terms, expected[layer.stack, layer.layer][head])


def turned_back(kind: str, model: Any, side: np.ndarray) -> np.ndarray:
    """[S, H, N, r] gradients at queries or keys, each position's rotation undone; as they are without rotary."""
    if kind not in ("llama", "gemma2", "neox"):
        return side
    base = getattr(model, model.base_model_prefix)
    places = torch.arange(side.shape[2])[None]
    cos, sin = (part[0].numpy() for part in base.rotary_emb(torch.zeros(1, dtype=torch.float64), places))
    width = cos.shape[-1]
    moved, left = side[..., :width], side[..., width:]  # NeoX turns only the first half of a head
    bent = moved * sin
    back = np.concatenate([bent[..., width // 2 :], -bent[..., : width // 2]], -1)  # transpose of (−b, a)
    return np.concatenate([moved * cos + back, left], -1)


def own_heads(kind: str, stack: str, layer: int, gradients: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """[H, d, r] and [G, d, r] cut from `.grad` by hand."""
    name = {
        "bert": f"bert.encoder.layer.{layer}.attention.self.%s.weight",
        "gpt2": f"transformer.h.{layer}.attn.c_attn.weight",
        "t5": f"{stack}.block.{layer}.layer.0.SelfAttention.%s.weight",
        "neox": f"gpt_neox.layers.{layer}.attention.query_key_value.weight",
    }.get(kind, f"model.layers.{layer}.self_attn.%s_proj.weight")
    if kind == "gpt2":
        fused = gradients[name].T.reshape(3, 4, 8, 32)
        return fused[0].mT, fused[1].mT
    if kind == "neox":
        fused = gradients[name].reshape(4, 3, 8, 32)
        return fused[:, 0].mT, fused[:, 1].mT
    size = 6 if kind == "t5" else 8
    words = ("query", "key") if kind == "bert" else ("q", "k")
    query, key = (gradients[name % word].reshape(-1, size, 32).mT for word in words)
    return query, key


BY_HAND = [(kind, way) for kind in ("bert", "gpt2", "llama", "t5", "neox") for way in ("eager", "sdpa")]


@pytest.mark.parametrize(("kind", "attention"), [*BY_HAND, ("gemma2", "eager")])
def test_weight_gradients_follow_from_beta_x_q_k_alone(kind: str, attention: str) -> None:
    model = made(kind, attention)
    terms, gradients = gradient_terms(model, batch(kind)), own_gradients(kind, attention)
    for layer in terms.layers:
        query, key = own_heads(kind, layer.stack, layer.layer, gradients)
        many = 4 // layer.key.shape[1]
        keys = layer.key.repeat(many, 1)  # [S, H, N, r]
        at_query = turned_back(kind, model, layer.beta @ keys)
        at_key = turned_back(kind, model, layer.beta.swapaxes(2, 3) @ layer.query)
        assert_same(-layer.scale * np.einsum("snd,shnr->hdr", layer.x, at_query), query)
        by_head = -layer.scale * np.einsum("snd,shnr->hdr", layer.x, at_key)
        assert_same(by_head.reshape(-1, many, *by_head.shape[1:]).sum(1), key)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "deepseek"])
def test_the_weight_gradients_given_are_the_models_own(kind: str) -> None:
    attention = "eager" if kind in NO_SDPA else "sdpa"
    terms, gradients = gradient_terms(made(kind, attention), batch(kind)), own_gradients(kind, attention)
    placed = {(one.stack, one.layer): one for one in live(made(kind, attention)).projections}
    assert len(placed) == len(terms.layers)
    for layer in terms.layers:
        one = placed[layer.stack, layer.layer]
        query, key = (part.flatten(0, -3).mT for part in views(one.site, gradients))
        assert layer.weights is not None
        assert_same(layer.weights.query_gradient, query)
        assert_same(layer.weights.key_gradient, key)
        assert_same(layer.weights.query, one.query.flatten(0, -3).mT, 0)
        assert_same(layer.weights.key, one.key.flatten(0, -3).mT, 0)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gemma2", "opt", "esm"])
def test_scale_queries_and_keys_make_the_products(kind: str) -> None:
    """scale·q̂ k̂ᵀ, soft-capped, is what the model's own softmax is given."""
    model = made(kind)
    _, seen = plain_run(model, {k: v for k, v in batch(kind, padded=False).items() if k != "labels"})
    layer = gradient_terms(model, batch(kind, padded=False)).layers[0]
    keys = layer.key.repeat(4 // layer.key.shape[1], 1)
    logits = layer.scale * layer.query @ keys.swapaxes(2, 3)
    if kind == "gemma2":
        logits = 0.7 * np.tanh(logits / 0.7)
    allowed = seen[0].numpy() > -1e4
    assert_same(logits[allowed], seen[0].numpy()[allowed], 1e-6 if kind == "esm" else 1e-12)


def test_shared_layers_are_summed_over_every_use() -> None:
    terms = gradient_terms(made("albert"), batch("albert"))
    (layer,) = terms.layers
    assert layer.x.shape == (9, 9, 32) and layer.beta.shape == (9, 4, 9, 9)  # three sequences, three uses
    assert np.abs(layer.x[:3] - layer.x[3:6]).max() > 0.1
    assert terms.labels == ("L0H0", "L0H1", "L0H2", "L0H3")


def test_tied_modules_are_one_layer() -> None:
    model = made("bert")
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.query.weight, second.key.weight = first.query.weight, first.key.weight
    (layer,) = gradient_terms(model, batch("bert")).layers
    model(**batch("bert")).loss.backward()
    assert layer.weights is not None
    assert_same(layer.weights.query_gradient, first.query.weight.grad.reshape(4, 8, 32).mT)


def test_latent_attention_has_an_update_and_says_why_it_has_no_weights() -> None:
    head = gradient_terms(made("deepseek"), batch("deepseek"))["L1H2"]
    assert head.weights is None and np.isfinite(head.update.symmetry())
    with pytest.raises(LayoutError, match=r"L1H2: no change, only the update; .*latent attention"):
        head.change()


def test_norms_that_round_to_float32_cost_digits_and_not_the_weights() -> None:
    """Hunyuan's norms stand last before the product: what is pulled back through them is float32 in any model."""
    torch.manual_seed(0)
    config = HunYuanDenseV1Config(**GROUPED | {"num_key_value_heads": 4})
    model = HunYuanDenseV1ForCausalLM._from_config(config, attn_implementation="eager").double().eval()
    terms = gradient_terms(model, batch("llama"))
    model(**batch("llama")).loss.backward()
    for layer, module in zip(terms.layers, model.model.layers, strict=True):
        assert layer.weights is not None, layer.missing
        for found, own in (
            (layer.weights.query_gradient, module.self_attn.q_proj.weight.grad),
            (layer.weights.key_gradient, module.self_attn.k_proj.weight.grad),
        ):
            assert_same(found, own.reshape(4, 8, 32).mT, 1e-6)


def test_a_scale_put_half_on_queries_and_half_on_keys_is_part_of_c() -> None:
    torch.manual_seed(0)
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    turns = {"rope_type": "default", "rope_theta": 1e4}
    config = OpenAIPrivacyFilterConfig(**GROUPED, **experts, sliding_window=9, rope_parameters=turns, num_labels=50)
    model = OpenAIPrivacyFilterForTokenClassification._from_config(config, attn_implementation="eager").double().eval()
    layer = gradient_terms(model, batch("llama", padded=False)).layers[0]
    assert layer.scale == pytest.approx(8**-0.5, rel=1e-15) and layer.weights is not None
    attention = model.model.layers[0].self_attn
    made_of = layer.x @ attention.q_proj.weight.detach().numpy().T + attention.q_proj.bias.detach().numpy()
    lengths = np.linalg.norm(made_of.reshape(3, 9, 4, 8), axis=-1).swapaxes(1, 2)  # [S, H, N], whatever the rotation
    assert_same(np.linalg.norm(layer.query, axis=-1), lengths, 1e-6)


def test_a_position_bias_made_of_the_queries() -> None:
    """It comes as a mask with a gradient of its own, so W_q acts twice, W_k only through the products."""
    more = {"num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 4, "conv_kernel_size": 3}
    torch.manual_seed(0)
    model = ParakeetEncoder._from_config(ParakeetEncoderConfig(**SIZES, **more), attn_implementation="sdpa")
    model = model.double().eval()
    for name, value in model.named_parameters():
        torch.nn.init.normal_(value, std=0.3) if "self_attn" in name else None
    inputs = {"input_features": torch.randn(2, 40, 16, dtype=torch.float64)}

    def loss(output: Any) -> Any:
        return output.last_hidden_state.sin().sum()

    terms = gradient_terms(model, inputs, loss=loss)
    loss(model(**inputs)).backward()
    for layer, module in zip(terms.layers, model.layers, strict=True):
        at_key = layer.beta.swapaxes(2, 3) @ layer.query  # [S, H, N, r]
        made_of = -layer.scale * np.einsum("snd,shnr->hdr", layer.x, at_key)
        assert_same(made_of, module.self_attn.k_proj.weight.grad.reshape(4, 8, 32).mT)
        assert layer.weights is None and "act through other terms too" in layer.missing
