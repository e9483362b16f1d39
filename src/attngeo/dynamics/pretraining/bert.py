"""A lean BERT for pre-training, with the parameters and the names of transformers' BertForMaskedLM.

The output embedding is tied to the input embedding. The computation is in `transformer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, Union

import torch
from torch import Tensor, nn

from attngeo.dynamics.pretraining.transformer import SelectRows, embed, layer, logits_of, loss_of

Shapes: TypeAlias = Mapping[str, Union[tuple[int, ...], "Shapes"]]  # of parameters, by name, in nested modules


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    length: int  # number of positions
    causal: bool

    def to_dict(self) -> dict[str, object]:
        """Return the content of transformers' config.json."""
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
        """Return the floating-point operations of one training step.

        6·parameters·tokens + 12·layers·d·length·tokens for the layers, and 6·(d² + d·vocabulary)·predicted for the
        output head, which is computed at the predicted positions only.
        """
        d, tokens = self.hidden, rows * self.length
        parameters = self.layers * (4 * d * d + 2 * d * self.intermediate)
        body = 6.0 * parameters * tokens + 12.0 * self.layers * d * self.length * tokens
        return body + 6.0 * (d * d + d * self.vocabulary) * predicted


class Bert(nn.Module):  # type: ignore[misc]
    """The model. Parameters are named as transformers names them, so that `state_dict` is a checkpoint.

    dtype: type of the matrix products and of the activations between layers
    compiled: whether the functions of a layer are compiled with torch.compile
    """

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        super().__init__()
        self.config, self.dtype = shape, dtype
        d, up = shape.hidden, shape.intermediate
        self.bert = _module({
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
        head: Shapes = {"bias": (shape.vocabulary,), "transform": {"dense": _linear(d, d), "LayerNorm": _norm(d)}}
        self.cls = _module({"predictions": head})
        self.embedding_weights = tuple(self.get_parameter(f"bert.embeddings.{name}") for name in _EMBEDDING)
        self.layer_weights = [
            tuple(self.get_parameter(f"bert.encoder.layer.{i}.{name}") for name in _LAYER) for i in range(shape.layers)
        ]
        self.head_weights = tuple(self.get_parameter(name) for name in _HEAD)
        self._embed: Callable[..., Tensor] = _compiled(embed) if compiled else embed
        self._layer: Callable[..., Tensor] = _compiled(layer) if compiled else layer
        self._loss_of: Callable[..., Tensor] = _compiled(loss_of) if compiled else loss_of

    def initialise(self, seed: int) -> None:
        """Set the weights as BERT does: matrices N(0, 0.02²), biases 0, gains 1.

        Each matrix is drawn with a seed that depends on its place among the parameters and on `seed` only.
        """
        with torch.no_grad():
            for number, (name, weight) in enumerate(self.named_parameters()):
                if weight.dim() == 2:
                    generator = torch.Generator().manual_seed(seed * 100_003 + number)
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
                else:
                    weight.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)

    def encode(self, ids: Tensor) -> Tensor:
        """Return the output of the last layer [rows, length, d] for token ids [rows, length]."""
        x = self._embed(ids, self.embedding_weights, self.dtype)  # [rows, length, d]
        for weights in self.layer_weights:
            x = self._layer(x, weights, self.config.heads, self.config.causal)
        return x

    def loss(self, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss in nats at `positions` [n] of the flattened rows ids [rows, length]; targets: [n]."""
        x = self.encode(ids).flatten(0, 1)  # [rows·length, d]
        return self._loss_of(SelectRows.apply(x, positions), targets, self.head_weights)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [rows, length, vocabulary] for token ids [rows, length]."""
        return logits_of(self.encode(ids).flatten(0, 1), self.head_weights).unflatten(0, ids.shape)


@cache  # one compilation for every model of a process
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64  # for several shapes, with and without gradients
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False)
    return compiled


def _linear(rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (rows, columns), "bias": (rows,)}


def _norm(d: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (d,), "bias": (d,)}


def _module(shapes: Shapes) -> nn.Module:
    """Return nested modules with uninitialised parameters of the shapes given."""
    module = nn.Module()
    for name, part in shapes.items():
        if isinstance(part, tuple):
            module.register_parameter(name, nn.Parameter(torch.empty(*part)))
        else:
            module.add_module(name, _module(part))
    return module


# Names of the parameters in the order in which the functions of `transformer` take them.
_EMBEDDING = (
    "word_embeddings.weight",
    "position_embeddings.weight",
    "token_type_embeddings.weight",
    "LayerNorm.weight",
    "LayerNorm.bias",
)
_LAYER = tuple(
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
_HEAD = (
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.bias",
)
