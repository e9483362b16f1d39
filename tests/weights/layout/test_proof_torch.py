"""Checkpoints without a transformers config against live torch modules and their attention weights, head by head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

import attngeo
from attngeo import attention_layers
from attngeo.errors import LayoutError
from attngeo.weights.layout.layer import Layer
from tools.proof.agreement import TOLERANCE, agreement, exchange_is_noticed
from tools.proof.comparable_model import reduce_norms
from tools.proof.product_recorder import recorded_products

WIDTH, HEADS = 32, 4
SHAPE: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 48, "dropout": 0.0, "batch_first": True}


def randomised(model: nn.Module) -> nn.Module:
    """Return the model with layers that differ (torch copies one), logits of order one and no bias.

    It is in train mode, in which torch does not take its fused path.
    """
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
    return model.train()


def attention_inputs(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Run the model and return the (query, key) inputs of each MultiheadAttention inside it, by its path."""
    given: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(path: str) -> Any:
        return lambda module, arguments: given.update({path: (arguments[0], arguments[1])})

    hooks = [
        module.register_forward_pre_hook(hook(path))
        for path, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    with torch.no_grad():
        model(*inputs)
    for handle in hooks:
        handle.remove()
    return given


def relative_error(weights: Layer, attention: nn.Module, given: tuple[Tensor, Tensor]) -> float:
    """Return the largest relative error over heads of x M_h xᵀ / √r against the log of torch's own attention weights.

    Rows are centred, since the softmax does not change when a constant is added to a row.
    """
    q, k = (
        torch.einsum("bnd,hdr->bhnr", x, torch.from_numpy(np.ascontiguousarray(side)))
        for x, side in zip(given, (weights.query, weights.key), strict=True)
    )
    ours = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, N, M]
    scale = float((8 / ours.abs().max()).clamp(max=1))  # the softmax of trained heads can underflow
    with torch.no_grad():
        _, live = attention(scale * given[0], given[1], given[1], need_weights=True, average_attn_weights=False)
    ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (scale * ours, live.log()))
    lengths = [logits.square().sum((0, 2, 3)).sqrt() for logits in (ours - theirs, theirs)]  # [H]
    return float((lengths[0] / lengths[1]).max())


def check_layers(
    layers: Iterable[Layer], model: nn.Module, given: dict[str, tuple[Tensor, Tensor]], prefix: str = ""
) -> None:
    """Check that every layer agrees with its module, and that exchanging two heads, or queries and keys, is noticed.

    prefix: what the names in the checkpoint have before those of the model
    """
    paths = set()
    for weights in layers:
        path = weights.tensors[0].removeprefix(prefix).rpartition(".")[0]
        attention = model.get_submodule(path) if path else model
        paths.add(path)
        assert relative_error(weights, attention, given[path]) < TOLERANCE
        order = [len(weights.query) - 1, *range(1, len(weights.query) - 1), 0]
        assert relative_error(dataclasses.replace(weights, query=weights.query[order]), attention, given[path]) > 1e-2
        if weights.query.shape == weights.key.shape:
            exchanged = dataclasses.replace(weights, query=weights.key, key=weights.query)
            assert relative_error(exchanged, attention, given[path]) > 1e-2
    assert paths == set(given)


def random_tokens(*, width: int = WIDTH, count: int = 7, seed: int = 1) -> Tensor:
    """Return token vectors [2, count, width]."""
    return torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))


def stacks(layers: list[Layer]) -> dict[str, list[int]]:
    """Return {stack: layer numbers}."""
    numbers: dict[str, list[int]] = {}
    for weights in layers:
        numbers.setdefault(weights.stack, []).append(weights.layer)
        assert weights.cross == (weights.stack == "cross")
    return numbers


ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SHAPE), 3, enable_nested_tensor=False)
DECODER = nn.TransformerDecoder(nn.TransformerDecoderLayer(**SHAPE), 2)
BOTH = nn.Transformer(
    WIDTH, HEADS, 2, 3, dim_feedforward=48, dropout=0.0, batch_first=True,
    custom_encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(**SHAPE), 2, enable_nested_tensor=False),
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (nn.TransformerEncoderLayer(**SHAPE), 1, {"encoder": [0]}),
        (ENCODER, 1, {"encoder": [0, 1, 2]}),
        (nn.TransformerDecoderLayer(**SHAPE), 2, {"decoder": [0], "cross": [0]}),
        (DECODER, 2, {"decoder": [0, 1], "cross": [0, 1]}),
        (BOTH, 2, {"encoder": [0, 1], "decoder": [0, 1, 2], "cross": [0, 1, 2]}),
    ],
    ids=["encoder layer", "encoder", "decoder layer", "decoder", "encoder-decoder"],
)
def test_torch_transformers_agree_with_their_attention_weights(
    model: nn.Module, inputs: int, expected: dict[str, list[int]], tmp_path: Path
) -> None:
    model = randomised(model)
    given = attention_inputs(model, *(random_tokens(count=7 + i, seed=i) for i in range(inputs)))
    layers = list(attention_layers(model.state_dict(), num_heads=HEADS))
    assert stacks(layers) == expected
    check_layers(layers, model, given)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for saved, in_memory in zip(attention_layers(tmp_path / "model.pt", num_heads=HEADS), layers, strict=True):
        np.testing.assert_array_equal(saved.query, in_memory.query)
        np.testing.assert_array_equal(saved.key, in_memory.key)


def test_multihead_attention_by_itself_is_one_encoder_layer() -> None:
    model = randomised(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    layers = list(attention_layers(model, num_heads=HEADS))
    assert stacks(layers) == {"encoder": [0]}
    check_layers(layers, model, {"": (random_tokens(), random_tokens())})


def test_keys_of_another_width_are_cross_attention() -> None:
    model = randomised(nn.MultiheadAttention(WIDTH, HEADS, kdim=24, vdim=24, batch_first=True))
    layers = list(attention_layers(model.state_dict(), num_heads=HEADS))
    assert stacks(layers) == {"cross": [0]}
    assert (layers[0].query.shape, layers[0].key.shape) == ((4, 32, 8), (4, 24, 8))
    check_layers(layers, model, {"": (random_tokens(), random_tokens(width=24, count=9))})
    frame = attngeo.score(model.state_dict(), num_heads=HEADS, nulls=False).frame
    assert frame["symmetry"].null_count() == len(frame) == 1 + HEADS
    assert frame["directionality"].null_count() == 0


def test_without_a_head_count_only_layers_are_scored() -> None:
    model = randomised(ENCODER)
    whole = attngeo.score(model.state_dict(), nulls=False)
    assert whole.frame["head"].null_count() == len(whole.frame) == 3
    note, rotary = whole.notes
    assert "only layers are scored" in note and "num_heads" in note
    # A state dict does not say whether anything rotates.
    assert "whether and how this model rotates queries and keys by their positions is not proved" in rotary
    split = attngeo.score(model.state_dict(), num_heads=HEADS, nulls=False)
    assert split.notes == (rotary,) and len(split.frame) == 3 * (1 + HEADS)
    for column in ("symmetry", "directionality", "norm"):
        layers = split.frame.filter(split.frame["head"].is_null())[column]
        np.testing.assert_allclose(layers, whole.frame[column], atol=2e-6, rtol=2e-6)
    with pytest.raises(LayoutError, match=r"in_proj_weight: 96 rows do not hold 5 query"):
        attngeo.score(model.state_dict(), num_heads=5)


@pytest.mark.parametrize("variant", ["SCEPTR", "SCEPTR_large", "SCEPTR_left_aligned"])
def test_the_state_dicts_of_sceptr_agree_with_torch_encoders(sceptr: Path, variant: str) -> None:
    """A real state dict of torch's own encoder, in a folder whose config is not one of transformers."""
    state = torch.load(sceptr / variant / "state_dict.pt", weights_only=True, map_location="cpu")
    (prefix,) = {name.partition("layers.")[0] for name in state if "in_proj_weight" in name}
    inner = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    count = sum("in_proj_weight" in name for name in inner)
    feed_forward, width = inner["layers.0.linear1.weight"].shape
    layer = nn.TransformerEncoderLayer(width, 8, feed_forward, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, count, enable_nested_tensor=False).train()
    model.load_state_dict(inner)  # strict: no tensor is missing or superfluous
    for name, parameter in model.named_parameters():
        if name.endswith("in_proj_bias"):
            nn.init.zeros_(parameter)
    given = attention_inputs(model, random_tokens(width=width))
    layers = list(attention_layers(sceptr / variant, num_heads=8))
    assert stacks(layers) == {"encoder": list(range(count))}
    check_layers(layers, model, given, prefix)


class TimmAttention(nn.Module):
    """Attention with the tensor names of timm's vision transformers; timm itself is not installed."""

    def __init__(self, *, qk_norm: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm = nn.LayerNorm(WIDTH // HEADS) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(WIDTH // HEADS) if qk_norm else nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, N, r]
        weights = (self.q_norm(q) * (c // HEADS) ** -0.5 @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))  # type: ignore[no-any-return]


@pytest.mark.parametrize("qk_norm", [False, True])
def test_fused_qkv_of_timm_agrees_with_the_live_products(qk_norm: bool) -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleDict({"attn": TimmAttention(qk_norm=qk_norm)}) for _ in range(2))
    randomised(model)
    for name, parameter in model.named_parameters():
        if "_norm" in name and name.endswith("weight"):
            nn.init.uniform_(parameter, 0.5, 1.5)
    state = model.state_dict()
    assert "blocks.1.attn.qkv.weight" in state
    reduce_norms(model)  # to their linear part, which a form includes
    x = random_tokens()
    layers = list(attention_layers(state, num_heads=HEADS))
    assert stacks(layers) == {"encoder": [0, 1]}
    assert [w.qk_norm for w in layers] == [qk_norm, qk_norm]
    for weights in layers:
        with recorded_products() as recorder, torch.no_grad():
            model.get_submodule(f"blocks.{weights.layer}.attn")(x)
        product = min(recorder.products, key=lambda product: agreement(weights, product))
        assert agreement(weights, product) < TOLERANCE
        assert exchange_is_noticed(weights, product)
        interleaved = np.concatenate([weights.query, weights.key]).reshape(HEADS, 2, WIDTH, -1)  # as [h, (q, k), r]
        wrong = dataclasses.replace(weights, query=interleaved[:, 0], key=interleaved[:, 1])
        assert min(agreement(wrong, product) for product in recorder.products) > 1e-2


def test_layer_numbers_of_torchvision_are_read() -> None:
    state = {f"encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight": torch.randn(96, 32) for i in range(12)}
    assert stacks(list(attention_layers(state, num_heads=HEADS))) == {"encoder": list(range(12))}
