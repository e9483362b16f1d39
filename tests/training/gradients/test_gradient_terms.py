"""The sum of the rank-1 terms equals ∂L/∂E, and the weight gradients are those of an ordinary backward pass."""

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

from attngeo.errors import InputError, LayoutError
from attngeo.live.checkpoint import attention_parameters, query_key_views
from attngeo.training.gradients.gradient_terms import gradient_terms
from tests.live.tiny_live_models import eager_run
from tests.training.gradients.gradient_models import (
    GROUPED,
    MODELS,
    SCALES,
    SIZES,
    assert_same,
    autograd_gradients,
    labelled_batch,
    model_with_loss,
)

NO_SDPA = ("gemma2", "gpt_oss")  # with a soft-cap or a sink transformers has only eager attention


def attentions(kind: str, model: Any) -> dict[str, list[Any]]:
    """Return the self-attention modules by stack, written out for each architecture."""
    by_kind: dict[str, Any] = {
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
    return by_kind.get(kind, lambda: {"decoder": [layer.self_attn for layer in model.model.layers]})()  # type: ignore[no-any-return]


def gradient_of_e(kind: str) -> dict[tuple[str, int], torch.Tensor]:
    """Return ∂L/∂E at E = 0 by autograd, with c·X E Xᵀ added to the products in an attention function of this test."""
    model = model_with_loss(kind, "eager" if kind in NO_SDPA else "sdpa")
    scale_and_e: dict[int, tuple[float, torch.Tensor]] = {}  # by id of the module
    inputs: dict[int, torch.Tensor] = {}
    e_of_layer = {}

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any = None, **kwargs: Any) -> Any:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        products = kwargs["scaling"] * query @ key.mT
        if id(module) in scale_and_e:
            c, e = scale_and_e[id(module)]
            # Detached: at E = 0 the gradient to x is 0, but adding zeros changes how float32 norms round.
            x = inputs[id(module)].detach()[:, None]  # [B, 1, N, d]
            products = products + c * x @ e @ x.mT
        if kwargs.get("softcap"):
            products = kwargs["softcap"] * torch.tanh(products / kwargs["softcap"])
        for bias in (kwargs.get("position_bias"), mask):
            products = products if bias is None else products + bias
        if getattr(module, "sinks", None) is not None:
            sinks = module.sinks.reshape(1, -1, 1, 1).expand(*products.shape[:3], 1)
            products = torch.cat([products, sinks], -1)
        # Gemma has only eager attention, which rounds here.
        probabilities = products.softmax(-1, dtype=torch.float32 if kind == "gemma2" else None).to(value.dtype)
        probabilities = probabilities[..., : key.shape[2]]
        return (probabilities @ value).transpose(1, 2).contiguous(), probabilities

    def record_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs[id(module)] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

    AttentionInterface.register("with_e", attend)
    AttentionMaskInterface.register("with_e", eager_mask)
    for stack, modules in attentions(kind, model).items():
        for layer, module in enumerate(modules):
            e = torch.zeros(4, 32, 32, dtype=torch.float64, requires_grad=True)
            scale_and_e[id(module)] = SCALES[kind][layer], e
            e_of_layer[stack, layer] = e
            module.register_forward_pre_hook(record_input, with_kwargs=True)
    model.config._attn_implementation_internal = "with_e"
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation_internal = "with_e"
    gradients = torch.autograd.grad(model(**labelled_batch(kind)).loss, list(e_of_layer.values()))
    return dict(zip(e_of_layer, gradients, strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_the_sum_of_the_terms_is_the_gradient_of_e(kind: str) -> None:
    terms = gradient_terms(model_with_loss(kind, "eager" if kind in NO_SDPA else "sdpa"), labelled_batch(kind))
    expected = gradient_of_e(kind)
    assert {(layer.stack, layer.layer) for layer in terms.layers} == set(expected)
    for layer in terms.layers:
        assert layer.scale == SCALES[kind][layer.layer]
        for head in range(4):
            assert_same(layer.head(head).gradient(), expected[layer.stack, layer.layer][head])
            # The same, written out: −c Σ_ij β_ij x_i x_jᵀ.
            sum_of_terms = np.einsum("sij,sia,sjb->ab", layer.beta[:, head], layer.x, layer.x)
            assert_same(-layer.scale * sum_of_terms, expected[layer.stack, layer.layer][head])


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "deepseek"])
def test_weight_gradients_equal_those_of_autograd(kind: str) -> None:
    attention = "eager" if kind in NO_SDPA else "sdpa"
    terms = gradient_terms(model_with_loss(kind, attention), labelled_batch(kind))
    gradients = autograd_gradients(kind, attention)
    layers = attention_parameters(model_with_loss(kind, attention)).layers
    parameters = {(one.found.stack, one.found.layer): one for one in layers}
    assert len(parameters) == len(terms.layers)
    for layer in terms.layers:
        one = parameters[layer.stack, layer.layer]
        query, key = (part.flatten(0, -3).mT for part in query_key_views(one.found, gradients))
        assert layer.weights is not None
        assert_same(layer.weights.query_gradient, query)
        assert_same(layer.weights.key_gradient, key)
        assert_same(layer.weights.query, one.query.flatten(0, -3).mT, 0)
        assert_same(layer.weights.key, one.key.flatten(0, -3).mT, 0)


@pytest.mark.parametrize("kind", ["bert", "llama", "gemma2", "esm"])
def test_scale_queries_and_keys_give_the_logits(kind: str) -> None:
    """scale·q̂ k̂ᵀ, soft-capped, equals the input of the model's own softmax."""
    model = model_with_loss(kind)
    _, masked_logits = eager_run(model, {k: v for k, v in labelled_batch(kind, padded=False).items() if k != "labels"})
    layer = gradient_terms(model, labelled_batch(kind, padded=False)).layers[0]
    keys = layer.key.repeat(4 // layer.key.shape[1], 1)
    logits = layer.scale * layer.query @ keys.swapaxes(2, 3)
    if kind == "gemma2":
        logits = 0.7 * np.tanh(logits / 0.7)
    allowed = masked_logits[0].numpy() > -1e4
    assert_same(logits[allowed], masked_logits[0].numpy()[allowed], 1e-6 if kind == "esm" else 1e-12)


def test_shared_layers_are_summed_over_every_call() -> None:
    terms = gradient_terms(model_with_loss("albert"), labelled_batch("albert"))
    (layer,) = terms.layers
    assert layer.x.shape == (9, 9, 32) and layer.beta.shape == (9, 4, 9, 9)  # three sequences, three calls
    assert np.abs(layer.x[:3] - layer.x[3:6]).max() > 0.1
    assert terms.labels == ("L0H0", "L0H1", "L0H2", "L0H3")


def test_modules_with_tied_weights_are_one_layer() -> None:
    model = model_with_loss("bert")
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.query.weight, second.key.weight = first.query.weight, first.key.weight
    (layer,) = gradient_terms(model, labelled_batch("bert")).layers
    model(**labelled_batch("bert")).loss.backward()
    assert layer.weights is not None
    assert_same(layer.weights.query_gradient, first.query.weight.grad.reshape(4, 8, 32).mT)


def test_shared_weights_under_different_scales_are_refused() -> None:
    """With one scale for both calls, the gradient would be off by 8%."""
    model = model_with_loss("gpt2")  # divides the logits by the number of the layer
    first, second = model.transformer.h
    second.attn.c_attn = first.attn.c_attn
    with pytest.raises(InputError, match=r"h\.0\.attn: called with the scales 0\.354 and 0\.177 in one run, "):
        gradient_terms(model, labelled_batch("gpt2"))


def test_latent_attention_has_an_update_and_a_reason_for_missing_weights() -> None:
    head = gradient_terms(model_with_loss("deepseek"), labelled_batch("deepseek"))["L1H2"]
    assert head.weights is None and np.isfinite(head.update.symmetry())
    with pytest.raises(LayoutError, match=r"L1H2: no change, only the update; .*latent attention"):
        head.change()


def test_norms_that_round_to_float32_cost_only_digits() -> None:
    """Hunyuan's norms come last before the product, and gradients through them are float32 whatever the model."""
    torch.manual_seed(0)
    config = HunYuanDenseV1Config(**GROUPED | {"num_key_value_heads": 4})
    model = HunYuanDenseV1ForCausalLM._from_config(config, attn_implementation="eager").double().eval()
    terms = gradient_terms(model, labelled_batch("llama"))
    model(**labelled_batch("llama")).loss.backward()
    for layer, module in zip(terms.layers, model.model.layers, strict=True):
        assert layer.weights is not None, layer.missing
        for from_beta, own in (
            (layer.weights.query_gradient, module.self_attn.q_proj.weight.grad),
            (layer.weights.key_gradient, module.self_attn.k_proj.weight.grad),
        ):
            assert_same(from_beta, own.reshape(4, 8, 32).mT, 1e-6)


def test_a_scale_split_between_queries_and_keys_is_part_of_c() -> None:
    torch.manual_seed(0)
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    rotary = {"rope_type": "default", "rope_theta": 1e4}
    config = OpenAIPrivacyFilterConfig(**GROUPED, **experts, sliding_window=9, rope_parameters=rotary, num_labels=50)
    model = OpenAIPrivacyFilterForTokenClassification._from_config(config, attn_implementation="eager").double().eval()
    layer = gradient_terms(model, labelled_batch("llama", padded=False)).layers[0]
    assert layer.scale == pytest.approx(8**-0.5, rel=1e-15) and layer.weights is not None
    attention = model.model.layers[0].self_attn
    projected = layer.x @ attention.q_proj.weight.detach().numpy().T + attention.q_proj.bias.detach().numpy()
    lengths = np.linalg.norm(projected.reshape(3, 9, 4, 8), axis=-1).swapaxes(1, 2)  # [S, H, N], whatever the rotation
    assert_same(np.linalg.norm(layer.query, axis=-1), lengths, 1e-6)


def test_a_position_bias_computed_from_the_queries_leaves_no_weights() -> None:
    """The bias is a mask with gradients of its own, so W_q acts through two terms, W_k only through the products."""
    sizes = {"num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 4, "conv_kernel_size": 3}
    torch.manual_seed(0)
    model = ParakeetEncoder._from_config(ParakeetEncoderConfig(**SIZES, **sizes), attn_implementation="sdpa")
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
        from_beta = -layer.scale * np.einsum("snd,shnr->hdr", layer.x, at_key)
        assert_same(from_beta, module.self_attn.k_proj.weight.grad.reshape(4, 8, 32).mT)
        assert layer.weights is None and "act through other terms too" in layer.missing
