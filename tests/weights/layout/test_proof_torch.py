"""Checkpoints without a transformers config against live torch modules: what torch itself attends to, head by head."""

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
from attngeo.weights.layout.attention_weights import AttentionWeights
from tools.proof.listen import listening
from tools.proof.prove import TOLERANCE, agreement, reduce_norms, swap_fails

WIDTH, HEADS = 32, 4
SHAPE: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 48, "dropout": 0.0, "batch_first": True}


def randomised(model: nn.Module) -> nn.Module:
    """Layers that differ (torch copies one), logits of order one, no bias; in training mode no fused path is taken."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
    return model.train()


def attended(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Run the model: what each MultiheadAttention inside it was given, (query, key) by the module's path."""
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


def error(weights: AttentionWeights, attention: nn.Module, given: tuple[Tensor, Tensor]) -> float:
    """Largest relative error over heads of x M_h xᵀ / √r against the log of torch's own weights, rows centred."""
    q, k = (
        torch.einsum("bnd,hdr->bhnr", x, torch.from_numpy(np.ascontiguousarray(side)))
        for x, side in zip(given, (weights.query, weights.key), strict=True)
    )
    ours = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, N, M]
    scale = float((8 / ours.abs().max()).clamp(max=1))  # trained heads are so sure that their softmax underflows
    with torch.no_grad():
        _, live = attention(scale * given[0], given[1], given[1], need_weights=True, average_attn_weights=False)
    ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (scale * ours, live.log()))
    lengths = [logits.square().sum((0, 2, 3)).sqrt() for logits in (ours - theirs, theirs)]  # [H]
    return float((lengths[0] / lengths[1]).max())


def check(layers: Iterable[AttentionWeights], model: nn.Module, given: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Every layer agrees with its module, and exchanging two heads, or queries with keys, is noticed."""
    seen = set()
    for weights in layers:
        path = weights.tensors[0].rpartition(".")[0]
        attention = model.get_submodule(path) if path else model
        seen.add(path)
        assert error(weights, attention, given[path]) < TOLERANCE
        order = [len(weights.query) - 1, *range(1, len(weights.query) - 1), 0]
        assert error(dataclasses.replace(weights, query=weights.query[order]), attention, given[path]) > 1e-2
        if weights.query.shape == weights.key.shape:
            turned = dataclasses.replace(weights, query=weights.key, key=weights.query)
            assert error(turned, attention, given[path]) > 1e-2
    assert seen == set(given)


def tokens(*, width: int = WIDTH, count: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))


def stacks(layers: list[AttentionWeights]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for weights in layers:
        found.setdefault(weights.stack, []).append(weights.layer)
        assert weights.cross == (weights.stack == "cross")
    return found


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
def test_torch_transformers(model: nn.Module, inputs: int, expected: dict[str, list[int]], tmp_path: Path) -> None:
    model = randomised(model)
    given = attended(model, *(tokens(count=7 + i, seed=i) for i in range(inputs)))
    layers = list(attention_layers(model.state_dict(), num_heads=HEADS))
    assert stacks(layers) == expected
    check(layers, model, given)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for saved, held in zip(attention_layers(tmp_path / "model.pt", num_heads=HEADS), layers, strict=True):
        np.testing.assert_array_equal(saved.query, held.query)
        np.testing.assert_array_equal(saved.key, held.key)


def test_multihead_attention_alone() -> None:
    model = randomised(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    layers = list(attention_layers(model, num_heads=HEADS))
    assert stacks(layers) == {"encoder": [0]}
    check(layers, model, {"": (tokens(), tokens())})


def test_keys_of_another_width_are_another_sequence() -> None:
    model = randomised(nn.MultiheadAttention(WIDTH, HEADS, kdim=24, vdim=24, batch_first=True))
    layers = list(attention_layers(model.state_dict(), num_heads=HEADS))
    assert stacks(layers) == {"cross": [0]}
    assert (layers[0].query.shape, layers[0].key.shape) == ((4, 32, 8), (4, 24, 8))
    check(layers, model, {"": (tokens(), tokens(width=24, count=9))})
    frame = attngeo.score(model.state_dict(), num_heads=HEADS, nulls=False).frame
    assert frame["symmetry"].null_count() == len(frame) == 1 + HEADS
    assert frame["directionality"].null_count() == 0


def test_without_a_head_count_only_layers_are_scored() -> None:
    model = randomised(ENCODER)
    whole = attngeo.score(model.state_dict(), nulls=False)
    assert whole.frame["head"].null_count() == len(whole.frame) == 3
    (note,) = whole.notes
    assert "only layers are scored" in note and "num_heads" in note
    split = attngeo.score(model.state_dict(), num_heads=HEADS, nulls=False)
    assert not split.notes and len(split.frame) == 3 * (1 + HEADS)
    for column in ("symmetry", "directionality", "norm"):
        layers = split.frame.filter(split.frame["head"].is_null())[column]
        np.testing.assert_allclose(layers, whole.frame[column], atol=2e-6, rtol=2e-6)
    with pytest.raises(LayoutError, match=r"in_proj_weight: 96 rows do not hold 5 query"):
        attngeo.score(model.state_dict(), num_heads=5)


@pytest.mark.parametrize("variant", ["SCEPTR", "SCEPTR_large", "SCEPTR_left_aligned"])
def test_sceptr(sceptr: Path, variant: str) -> None:
    """A real state dict in torch's own encoder: its folder has a config, but not of transformers' kind."""
    state = torch.load(sceptr / variant / "state_dict.pt", weights_only=True, map_location="cpu")
    (prefix,) = {name.partition("layers.")[0] for name in state if "in_proj_weight" in name}
    inner = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    count = sum("in_proj_weight" in name for name in inner)
    feed_forward, width = inner["layers.0.linear1.weight"].shape
    layer = nn.TransformerEncoderLayer(width, 8, feed_forward, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, count, enable_nested_tensor=False).train()
    model.load_state_dict(inner)  # strict: nothing is missing and nothing is left over
    for name, parameter in model.named_parameters():
        if name.endswith("in_proj_bias"):
            nn.init.zeros_(parameter)
    given = attended(model, tokens(width=width))
    layers = list(attention_layers(sceptr / variant, num_heads=8))
    assert stacks(layers) == {"encoder": list(range(count))}
    check(
        (dataclasses.replace(w, tensors=tuple(name.removeprefix(prefix) for name in w.tensors)) for w in layers),
        model,
        given,
    )


class Attention(nn.Module):
    """Attention as timm's vision transformers write it; timm itself is not installed."""

    def __init__(self, *, qk_norm: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm = nn.LayerNorm(WIDTH // HEADS, bias=False) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(WIDTH // HEADS, bias=False) if qk_norm else nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, N, r]
        weights = (self.q_norm(q) * (c // HEADS) ** -0.5 @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))  # type: ignore[no-any-return]


@pytest.mark.parametrize("qk_norm", [False, True])
def test_qkv_as_in_timm(qk_norm: bool) -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleDict({"attn": Attention(qk_norm=qk_norm)}) for _ in range(2))
    randomised(model)
    for name, parameter in model.named_parameters():
        if "_norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    state = model.state_dict()
    assert "blocks.1.attn.qkv.weight" in state
    reduce_norms(model)  # to their gains, which are what the form can hold of them
    x = tokens()
    layers = list(attention_layers(state, num_heads=HEADS))
    assert stacks(layers) == {"encoder": [0, 1]}
    assert [w.qk_norm for w in layers] == [qk_norm, qk_norm]
    for weights in layers:
        with listening() as ear, torch.no_grad():
            model.get_submodule(f"blocks.{weights.layer}.attn")(x)
        product = min(ear.products, key=lambda heard: agreement(weights, heard))
        assert agreement(weights, product) < TOLERANCE
        assert swap_fails(weights, product)
        interleaved = np.concatenate([weights.query, weights.key]).reshape(HEADS, 2, WIDTH, -1)  # as [h, (q, k), r]
        wrong = dataclasses.replace(weights, query=interleaved[:, 0], key=interleaved[:, 1])
        assert min(agreement(wrong, heard) for heard in ear.products) > 1e-2


def test_layers_numbered_as_torchvision_does() -> None:
    state = {f"encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight": torch.randn(96, 32) for i in range(12)}
    assert stacks(list(attention_layers(state, num_heads=HEADS))) == {"encoder": list(range(12))}
