"""Captured tensors equal what the model computes, and the model's state is restored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from transformers import T5Gemma2Config, T5Gemma2Model

from attngeo.errors import InputError
from attngeo.organization.capture import capture
from attngeo.organization.tensor import NetworkTensor
from tests.live.tiny_live_models import SIZES, TEXT, eager_run, model_inputs, tiny_model

# (model type, stack, positions of its layers among the softmax calls of one run)
STACKS = [
    ("bert", "encoder", slice(0, 2)),
    ("roberta", "encoder", slice(0, 2)),
    ("modernbert", "encoder", slice(0, 2)),
    ("gpt2", "decoder", slice(0, 2)),
    ("llama", "decoder", slice(0, 2)),
    ("gemma2", "decoder", slice(0, 2)),
    ("gemma3", "decoder", slice(0, 2)),
    ("t5", "encoder", slice(0, 2)),
    ("t5", "decoder", slice(2, None, 2)),
    ("t5", "cross", slice(3, None, 2)),
    ("bart", "encoder", slice(0, 2)),
    ("bart", "decoder", slice(2, None, 2)),
    ("bart", "cross", slice(3, None, 2)),
    ("whisper", "encoder", slice(0, 2)),
    ("whisper", "decoder", slice(2, None, 2)),
    ("whisper", "cross", slice(3, None, 2)),
    ("vit", "encoder", slice(0, 2)),
    ("beit", "encoder", slice(0, 2)),
    ("wav2vec2", "encoder", slice(0, 2)),
    ("clip", "text", slice(2, 4)),
    ("clip", "vision", slice(0, 2)),
    ("albert", "encoder", slice(0, 3)),  # one layer, called three times
]


def captured(model, tensors, **options):
    """Return the network tensor, and the output of the model while it was captured."""
    outputs = []
    hook = model.register_forward_hook(lambda module, given, output: outputs.append(output))
    try:
        tensor = capture(model, tensors, **options)
    finally:
        hook.remove()
    return tensor, outputs[-1] if outputs else None


def heads_last(layers):
    return torch.cat([layer[0] for layer in layers]).permute(1, 2, 0).numpy()  # [Q, K, H]


@pytest.mark.parametrize(("kind", "stack", "calls"), STACKS, ids=[f"{kind}-{stack}" for kind, stack, _ in STACKS])
def test_logits_equal_those_of_the_model(kind, stack, calls):
    model, tensors = tiny_model(kind), model_inputs(kind)
    own, softmaxes = eager_run(model, tensors)
    tensor, output = captured(model, tensors, stack=stack)
    if output is not None and hasattr(own, "last_hidden_state"):  # a stack may run without the rest of the model
        torch.testing.assert_close(output.last_hidden_state, own.last_hidden_state, rtol=0, atol=1e-5)
    masked = heads_last(softmaxes[calls])
    assert tensor.shape == masked.shape
    allowed = np.broadcast_to(masked > -1e4, masked.shape)
    np.testing.assert_allclose(tensor.values[allowed], masked[allowed], rtol=0, atol=1e-5)
    mask = np.ones(masked.shape[:2], bool) if tensor.mask is None else tensor.mask
    np.testing.assert_array_equal(np.broadcast_to(mask if mask.ndim == 3 else mask[:, :, None], masked.shape), allowed)
    assert np.isfinite(tensor.values).all() and tensor.values.std() > 0.05


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gemma2", "gemma3", "gpt_oss", "vit"])
def test_probabilities_and_the_masked_softmax_of_the_logits_equal_those_of_the_model(kind):
    model, tensors = tiny_model(kind), model_inputs(kind)
    with torch.no_grad():
        own = model(**tensors, output_attentions=True).attentions
    tensor = capture(model, tensors, stage="probabilities")
    assert tensor.stage == "probabilities"
    np.testing.assert_array_equal(tensor.values, heads_last(list(own)))
    if kind == "gpt_oss":  # part of the attention goes to a sink, which is not a key
        assert tensor.values.sum(1).min() > 0 and tensor.values.sum(1).max() < 0.999
    else:
        np.testing.assert_allclose(tensor.values.sum(1), 1, atol=1e-6)
    logits = capture(model, tensors)
    softmax = logits.probabilities(masked=logits.mask is not None)
    np.testing.assert_allclose(softmax, tensor.values / tensor.values.sum(1, keepdims=True), atol=1e-6)


def test_soft_cap_bounds_the_logits_and_masks_are_kept_per_head():
    tensor = capture(tiny_model("gemma2"), model_inputs("gemma2"))
    assert tensor.mask is not None
    assert np.abs(tensor.values).max() < 0.5
    assert tensor.mask.shape == (9, 9, 8)
    sliding, full = tensor.mask[:, :, 0], tensor.mask[:, :, 7]
    np.testing.assert_array_equal(full, np.tri(9, dtype=bool))
    np.testing.assert_array_equal(sliding, np.tri(9, dtype=bool) & ~np.tri(9, k=-3, dtype=bool))


def test_grouped_heads_use_their_own_key_head():
    model, tensors = tiny_model("llama"), model_inputs("llama")
    outputs = {}
    first = model.layers[0].self_attn
    hooks = [
        getattr(first, f"{side}_proj").register_forward_hook(lambda m, i, o, side=side: outputs.__setitem__(side, o[0]))
        for side in "qk"
    ]
    tensor = capture(model, tensors)
    for hook in hooks:
        hook.remove()
    query, key = outputs["q"].reshape(9, 4, 8), outputs["k"].reshape(9, 2, 8)
    for head in range(4):  # rotation does not change the product of a position with itself
        diagonal = (query[:, head] * key[:, head // 2]).sum(-1) / 8**0.5
        np.testing.assert_allclose(np.diagonal(tensor.values[:, :, head]), diagonal.detach(), atol=1e-5)


def test_padding_is_removed():
    model = tiny_model("bert")
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
    both = capture(model, {"input_ids": ids, "attention_mask": (ids > 0).long()})
    alone = capture(model, {"input_ids": ids[1:, :3]})
    assert both[0].shape == (6, 6, 8) and both[1].shape == (3, 3, 8)
    assert both[1].mask is None
    np.testing.assert_allclose(both[1].values, alone.values, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])  # the padding of gpt_oss attends to its sink alone
def test_padding_before_a_causal_text_is_removed(kind):
    model = tiny_model(kind)
    ids = torch.tensor([[0, 0, 5, 6, 7]])
    padded = capture(model, {"input_ids": ids, "attention_mask": (ids > 0).long()})
    alone = capture(model, {"input_ids": ids[:, 2:]})
    np.testing.assert_allclose(padded.values, alone.values, atol=1e-5)  # rotary: only distances count
    np.testing.assert_array_equal(padded.mask, np.tri(3, dtype=bool))


@pytest.mark.parametrize("samples", [400, 408])  # 12 positions; 408 is a multiple of 12
@pytest.mark.parametrize(("kind", "positions"), [("wav2vec2", 7), ("wav2vec2-adapter", 7), ("sew", 3)])
def test_padding_of_a_sound_is_removed(kind, positions, samples):
    """The positions left are those that the model itself attends to, so none of them is masked."""
    sound = {"input_values": torch.randn(1, samples, generator=torch.Generator().manual_seed(0))}
    padded = capture(tiny_model(kind), sound | {"attention_mask": (torch.arange(samples)[None] < 240).long()})
    assert padded.shape[:2] == (positions, positions) and padded.mask is None


def test_padding_of_the_keys_of_cross_attention_is_removed():
    tensors = model_inputs("bart") | {"attention_mask": torch.tensor([[1] * 6 + [0] * 3])}
    tensor = capture(tiny_model("bart"), tensors, stack="cross")
    assert tensor.shape == (5, 6, 8)


def test_padding_of_the_encoder_is_removed_from_the_keys_of_a_merged_attention():
    """The decoder of T5Gemma 2 attends to its own tokens and to those of the encoder at once."""
    text = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}
    vision = {**SIZES, "image_size": 32, "patch_size": 8}
    config = T5Gemma2Config(encoder={"text_config": text, "vision_config": vision}, decoder=text, eoi_token_index=58)
    torch.manual_seed(0)
    model = T5Gemma2Model._from_config(config, attn_implementation="eager").eval()
    tensors = {"input_ids": torch.arange(5, 11)[None], "decoder_input_ids": torch.arange(20, 24)[None]}
    alone = capture(model, {**tensors, "input_ids": tensors["input_ids"][:, :4]}, stack="decoder")
    mask = torch.tensor([[1] * 4 + [0] * 2])
    for more in ({}, {"decoder_attention_mask": torch.ones(1, 4, dtype=torch.long)}):
        padded = capture(model, tensors | more | {"attention_mask": mask}, stack="decoder")
        assert padded.shape == alone.shape == (4, 8, 8)
        np.testing.assert_allclose(padded.values, alone.values, atol=1e-5)
        np.testing.assert_array_equal(padded.mask, alone.mask)


def test_requested_layers_and_head_labels():
    model, tensors = tiny_model("bert"), model_inputs("bert")
    whole, second = capture(model, tensors), capture(model, tensors, layers=[1])
    assert whole.heads == tuple(f"L{layer}H{head}" for layer in range(2) for head in range(4))
    assert second.heads == ("L1H0", "L1H1", "L1H2", "L1H3")
    np.testing.assert_array_equal(second.values, whole.values[:, :, 4:])
    third = capture(tiny_model("albert"), model_inputs("albert"), layers=[2])
    assert third.heads[0] == "L2H0" and third.shape[2] == 4
    with pytest.raises(InputError, match="none of the requested layers exist; the layers are 0 to 1"):
        capture(model, tensors, layers=[7])
    with pytest.raises(InputError, match="no layer 7; layers are numbered from 0 to 1"):
        capture(model, tensors, layers=[0, 7])


def test_the_state_of_a_live_model_is_restored():
    model = tiny_model("llama", "sdpa").train()
    model.layers[1].eval()
    before = [module.training for module in model.modules()]
    capture(model, model_inputs("llama"))
    with pytest.raises(InputError, match="cannot run on"):
        capture(model, {"input_ids": torch.tensor([[1, 2, 999]])})
    assert model.config._attn_implementation == "sdpa"
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    loss = model(**model_inputs("llama")).last_hidden_state.sum()
    loss.backward()  # no tensor computed without gradients is left in the model
    assert model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.filterwarnings("ignore:TF32")
def test_half_precision_models_return_float32():
    model = tiny_model("llama").to(torch.bfloat16)
    with torch.backends.mkldnn.flags(enabled=False):  # some processors claim bfloat16 support and lack it
        tensor, exact = capture(model, model_inputs("llama")), capture(tiny_model("llama"), model_inputs("llama"))
    assert tensor.values.dtype == np.float32
    assert np.abs(tensor.values - exact.values).max() < 0.1 * np.abs(exact.values).max()


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_autocast_narrows_only_the_model(kind):
    """The products of queries and keys keep their digits, which bfloat16 would round to 8 bits."""
    model = tiny_model(kind)
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        tensor = capture(model, model_inputs(kind))
    exact = capture(model, model_inputs(kind))
    assert np.abs(tensor.values - exact.values).max() < 0.1 * np.abs(exact.values).max()
    rounded = torch.from_numpy(tensor.values).bfloat16().float().numpy()
    assert (tensor.values != rounded).mean() > 0.9


def test_a_model_whose_weights_are_offloaded():
    model, tensors = tiny_model("llama"), model_inputs("llama")
    expected = capture(model, tensors)
    assert capture(cpu_offload(model, torch.device("cpu")), tensors) == expected


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("kind", ["roberta", "vit", "llama"])
def test_half_precision_models_may_have_large_logits(kind):
    """A logit of 200 has an error of up to 0.5 in bfloat16, which changes the model's own probabilities."""
    model = tiny_model(kind)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")):
                weight *= 16
    with torch.backends.mkldnn.flags(enabled=False):  # some processors claim bfloat16 support and lack it
        tensor = capture(model.to(torch.bfloat16), model_inputs(kind))
    assert np.abs(tensor.values).max() > 100


def test_a_saved_tensor_is_read_back(tmp_path):
    tensor = capture(tiny_model("gemma2"), model_inputs("gemma2"))
    tensor.save(tmp_path / "tensor.npz")
    assert NetworkTensor.load(tmp_path / "tensor.npz") == tensor
