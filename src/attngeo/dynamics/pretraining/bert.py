"""A lean BERT: the parameters and names of transformers' BertForMaskedLM, and only the work pre-training needs.

Post-norm, no dropout, tied output embedding. Weights are kept in float32 and multiplied in `dtype`; normalisation,
embedding and loss are computed in float32. Each layer is one function of tensors, so that one compilation serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """What a model looks like."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    length: int  # positions
    causal: bool

    def to_dict(self) -> dict[str, Any]:
        """As transformers' config.json has it."""
        return {
            "model_type": "bert",
            "architectures": ["BertLMHeadModel" if self.causal else "BertForMaskedLM"],
            "is_decoder": self.causal,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.length,
            "type_vocab_size": 1,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "initializer_range": 0.02,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "use_cache": self.causal,
            "dtype": "float32",
        }

    def flops(self, rows: int, predicted: int) -> float:
        """Of one step: 6·parameters·tokens + 12·layers·d·length·tokens + the output head where it is computed."""
        d, tokens = self.hidden, rows * self.length
        block = 4 * d * d + 2 * d * self.intermediate
        body = 6.0 * self.layers * block * tokens + 12.0 * self.layers * d * self.length * tokens
        return body + 6.0 * (d * d + d * self.vocabulary) * predicted


def block(x: Tensor, w: Sequence[Tensor], heads: int, causal: bool) -> Tensor:
    """One layer, [rows, length, d] → the same."""
    (wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, w_up, b_up, w_down, b_down, g2, b2) = w
    rows, length, d = x.shape
    # one product for all three projections: x is read once
    qkv = linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv]))  # [rows, length, 3d]
    q, k, v = qkv.view(rows, length, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)  # [rows, heads, length, r]
    a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    a = a.transpose(1, 2).reshape(rows, length, d)
    x = norm(x, linear(a, wo, bo), g1, b1)
    return norm(x, linear(F.gelu(linear(x, w_up, b_up)), w_down, b_down), g2, b2)


def embed(ids: Tensor, w: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """[rows, length] → [rows, length, d]."""
    word, position, kind, g, b = w
    x = F.embedding(ids, word) + (position[: ids.shape[1]] + kind)
    return F.layer_norm(x, x.shape[-1:], g, b, 1e-12).to(dtype)


def predict(x: Tensor, w: Sequence[Tensor]) -> Tensor:
    """Logits [n, vocabulary] of n positions [n, d]."""
    dense, bias, g, b, word, word_bias = w
    h = F.gelu(linear(x, dense, bias))
    h = F.layer_norm(h.float(), h.shape[-1:], g, b, 1e-12).to(x.dtype)
    return linear(h, word, word_bias)


def loss_of(x: Tensor, targets: Tensor, w: Sequence[Tensor]) -> Tensor:
    """Mean cross-entropy in nats at n positions [n, d] with targets [n]."""
    return F.cross_entropy(predict(x, w).float(), targets)


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype), b.to(x.dtype))


def norm(x: Tensor, y: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """LayerNorm of x + y, in float32, kept in x's own type."""
    return F.layer_norm(x.float() + y.float(), x.shape[-1:], g, b, 1e-12).to(x.dtype)


class Pick(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Rows of x at distinct positions; its gradient is a plain copy, where indexing's own would add atomically."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        ctx.rows = x.shape[0]
        return x.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (at,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_copy_(0, at, grad), None


class Bert(nn.Module):  # type: ignore[misc]
    """The model; parameters are named as transformers names them, so that `state_dict` is a checkpoint."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        super().__init__()
        self.config, self.dtype = shape, dtype
        d, up = shape.hidden, shape.intermediate
        self.bert = _tree({
            "embeddings": {
                "word_embeddings": {"weight": (shape.vocabulary, d)},
                "position_embeddings": {"weight": (shape.length, d)},
                "token_type_embeddings": {"weight": (1, d)},
                "LayerNorm": _norm(d),
            },
            "encoder": {"layer": {str(i): {
                "attention": {
                    "self": {"query": _linear(d, d), "key": _linear(d, d), "value": _linear(d, d)},
                    "output": {"dense": _linear(d, d), "LayerNorm": _norm(d)},
                },
                "intermediate": {"dense": _linear(up, d)},
                "output": {"dense": _linear(d, up), "LayerNorm": _norm(d)},
            } for i in range(shape.layers)}},
        })  # fmt: skip
        head = {"bias": (shape.vocabulary,), "transform": {"dense": _linear(d, d), "LayerNorm": _norm(d)}}
        self.cls = _tree({"predictions": head})
        self._blocks = [
            tuple(self.get_parameter(f"bert.encoder.layer.{i}.{name}") for name in _BLOCK) for i in range(shape.layers)
        ]
        self._embed = tuple(self.get_parameter(f"bert.embeddings.{name}") for name in _EMBED)
        self._head = tuple(self.get_parameter(name) for name in _HEAD)
        wrap: Callable[[Any], Any] = _compiled if compiled else (lambda function: function)
        self._run = tuple(wrap(function) for function in (embed, block, loss_of))

    def initialise(self, seed: int) -> None:
        """BERT's own start: matrices N(0, 0.02²), biases 0, gains 1; each weight drawn by its name and `seed` alone."""
        with torch.no_grad():
            for number, (name, weight) in enumerate(self.named_parameters()):
                if weight.dim() == 2:
                    draw = torch.Generator().manual_seed(seed * 100_003 + number)
                    weight.copy_(torch.randn(weight.shape, generator=draw) * 0.02)
                else:
                    weight.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)

    def encode(self, ids: Tensor) -> Tensor:
        """Token ids [rows, length] → vectors [rows, length, d]."""
        embedded, run, _ = self._run
        x = embedded(ids, self._embed, self.dtype)
        for weights in self._blocks:
            x = run(x, weights, self.config.heads, self.config.causal)
        return x

    def loss(self, ids: Tensor, at: Tensor, targets: Tensor) -> Tensor:
        """Mean loss at the flat positions `at` [n] of ids [rows, length], targets [n]."""
        x = self.encode(ids).flatten(0, 1)  # [rows·length, d]
        return self._run[2](Pick.apply(x, at), targets, self._head)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        return predict(self.encode(ids).flatten(0, 1), self._head).unflatten(0, ids.shape)


@cache  # one compilation for every model of a process
def _compiled(function: Any) -> Any:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64  # several shapes, with and without gradients
    return torch.compile(function, dynamic=False)


def _linear(rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (rows, columns), "bias": (rows,)}


def _norm(d: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (d,), "bias": (d,)}


def _tree(spec: dict[str, Any]) -> nn.Module:
    """Nested modules with empty parameters of the shapes given."""
    module = nn.Module()
    for name, part in spec.items():
        if isinstance(part, dict):
            module.add_module(name, _tree(part))
        else:
            module.register_parameter(name, nn.Parameter(torch.empty(*part)))
    return module


_BLOCK = tuple(
    f"{part}.{leaf}"
    for part in (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    )
    for leaf in ("weight", "bias")
)
_EMBED = (
    "word_embeddings.weight",
    "position_embeddings.weight",
    "token_type_embeddings.weight",
    "LayerNorm.weight",
    "LayerNorm.bias",
)
_HEAD = (
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.bias",
)
