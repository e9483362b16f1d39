"""A model in pre-training: named parameters, the functions of its architecture, and its loss.

An architecture is a module of this package with functions of tensors and a subclass of `Model` that names the weights
they take. Parameters have the names that transformers gives them, so that `state_dict` is a checkpoint.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeAlias, Union

import torch
from torch import Tensor, nn

from attngeo.training.pretraining.architectures.blocks import Rotation, SelectRows, Setting, linear
from attngeo.training.pretraining.architectures.output_loss import OutputLoss, loss_and_gradients, mean_loss
from attngeo.training.pretraining.architectures.shape import Shape
from attngeo.weights.layout.rotary import RotaryPairs

Shapes: TypeAlias = Mapping[str, Union[tuple[int, ...], "Shapes"]]  # of parameters, by name, in nested modules
Weights: TypeAlias = Sequence[Any]  # tensors, in the order in which a function takes them; None: there is none


@dataclass(frozen=True)
class TransformersConfig:
    """The content of transformers' config.json."""

    settings: Mapping[str, object]

    def to_dict(self) -> dict[str, object]:
        """Return the settings."""
        return dict(self.settings)


@dataclass(frozen=True)
class Functions:
    """The computation of an architecture. Weights are arguments, so that one compilation serves all layers."""

    embed: Callable[[Tensor, Weights, torch.dtype], Tensor]  # ids [rows, length] → x [rows, length, d]
    attention_inputs: Callable[[Tensor, Weights, Setting], tuple[Tensor, Tensor, Tensor]]  # x → q, k, v, rotated
    layer: Callable[[Tensor, Weights, Setting, Tensor | None], Tensor]  # x, weights, setting, self-bias → x
    final_norm: Callable[[Tensor, Weights], Tensor]  # x [..., d] → x [..., d]
    output_features: Callable[[Tensor, Weights], Tensor]  # x [..., d] before the final norm → features [..., d]


class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model in pre-training.

    dtype: type of the matrix products and of the activations between layers
    compiled: whether the functions of a layer are compiled with torch.compile
    self_bias: number per layer that is added to the logit of each token with itself; it is not trained
    """

    functions: ClassVar[Functions]
    embedding_names: ClassVar[tuple[str, ...]]
    layer_path: ClassVar[str]  # path of the layers, up to their number
    layer_names: ClassVar[tuple[str, ...]]  # within a layer
    head_names: ClassVar[tuple[str, ...]]  # between the last layer and the output layer
    output_names: ClassVar[tuple[str, ...]]  # weight [vocabulary, d] of the output layer and, where it has one, bias
    rotary_base: ClassVar[float | None] = None  # the frequencies are base^(−2f/r); None: nothing rotates

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
        self_bias: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.config = TransformersConfig(self.transformers_config(shape))
        for name, part in self.parameter_shapes(shape).items():
            self.add_module(name, _module(part))  # type: ignore[arg-type]
        self.self_bias = None if self_bias is None else tuple(self_bias)
        rotation = None if self.rotary_base is None else _rotation(self.rotary_base, shape)
        for name in ("cos", "sin"):
            self.register_buffer(f"_{name}", getattr(rotation, name, None), persistent=False)
        self.register_buffer("_bias", None if self_bias is None else torch.tensor(self.self_bias), persistent=False)
        held = dict(self.named_parameters())
        self.embedding_weights = tuple(held[name] for name in self.embedding_names)
        # A weight that a layer does not have is None (the first norm of ModernBERT).
        self.layer_weights: list[Weights] = [
            tuple(held.get(f"{self.layer_path}.{i}.{name}") for name in self.layer_names) for i in range(shape.layers)
        ]
        self.head_weights = tuple(held[name] for name in self.head_names)
        self.output_weights = (*(held[name] for name in self.output_names), None)[:2]  # weight, bias or None
        of = self.functions
        prepared = _compiled if compiled else _uncompiled
        self._embed, self._layer, self._output_features = (
            prepared(function) for function in (of.embed, of.layer, of.output_features)
        )
        self._mean_loss, self._loss_and_gradients = prepared(mean_loss), prepared(loss_and_gradients)

    @staticmethod
    @abstractmethod
    def parameter_shapes(shape: Shape) -> Shapes:
        """Return the shapes of all parameters by name."""

    @staticmethod
    @abstractmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return the content of transformers' config.json."""

    @abstractmethod
    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, as they are stored: [out, in]."""

    @staticmethod
    def initial_std(name: str, shape: Shape) -> float:
        """Return the std of the initial values of a matrix."""
        return 0.02

    @property
    def rotary(self) -> RotaryPairs | None:
        """The rotary pairs of a head; None where nothing rotates."""
        if self.rotary_base is None:
            return None
        size = self.shape.head_size
        frequencies = [self.rotary_base ** (-2 * pair / size) for pair in range(size // 2)]
        return RotaryPairs.halves(frequencies, window=self.shape.length)

    @property
    def setting(self) -> Setting:
        """What all layers have in common."""
        rotation = None if self._cos is None else Rotation(self._cos, self._sin)
        return Setting(self.shape.heads, self.shape.causal, rotation)

    def layer_bias(self, layer: int) -> Tensor | None:
        """Return the self-bias of a layer, []; None where there is none."""
        return None if self._bias is None else self._bias[layer]

    def initialise(self, seed: int) -> None:
        """Set the initial values of the architecture: matrices normal, biases 0, gains 1.

        Each matrix is drawn with a seed that depends on its place among the parameters and on `seed` only.
        """
        with torch.no_grad():
            for number, (name, weight) in enumerate(self.named_parameters()):
                if weight.dim() == 2:
                    generator = torch.Generator().manual_seed(seed * 100_003 + number)
                    std = self.initial_std(name, self.shape)
                    weight.copy_(torch.randn(weight.shape, generator=generator) * std)
                else:
                    weight.fill_(0.0 if name.endswith("bias") else 1.0)

    def encode(self, ids: Tensor) -> Tensor:
        """Return the output of the last layer [rows, length, d] for token ids [rows, length], before a final norm."""
        x = self._embed(ids, self.embedding_weights, self.dtype)  # [rows, length, d]
        setting = self.setting
        for number, weights in enumerate(self.layer_weights):
            x = self._layer(x, weights, setting, self.layer_bias(number))
        return x

    def loss(self, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss in nats at `positions` [n] of the flattened rows ids [rows, length]; targets: [n]."""
        x = SelectRows.apply(self.encode(ids).flatten(0, 1), positions)  # [n, d]
        h = self._output_features(x, self.head_weights)  # [n, d]
        if torch.is_grad_enabled():
            return OutputLoss.apply(h, *self.output_weights, targets, self._loss_and_gradients)
        return self._mean_loss(h, *self.output_weights, targets)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [rows, length, vocabulary] for token ids [rows, length]."""
        h = self.functions.output_features(self.encode(ids), self.head_weights)  # [rows, length, d]
        return linear(h, *self.output_weights)

    def flops(self, rows: int, predicted: int) -> float:
        """Return the floating-point operations of one training step.

        6·parameters·tokens + 12·layers·d·length·tokens for the layers, and 6·parameters·predicted for the output head,
        which is computed at the predicted positions only. Parameters are those of matrices.
        """
        shape, tokens = self.shape, rows * self.shape.length
        layers, head = (
            sum(weight.numel() for weight in weights if weight is not None and weight.dim() == 2)
            for weights in (
                [weight for weights in self.layer_weights for weight in weights],
                (*self.head_weights, *self.output_weights),
            )
        )
        attention = 12.0 * shape.layers * shape.hidden * shape.length
        return float((6.0 * layers + attention) * tokens + 6.0 * head * predicted)


def linear_shapes(out: int, into: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a linear map."""
    return {"weight": (out, into), "bias": (out,)} if bias else {"weight": (out, into)}


def norm_shapes(d: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a norm."""
    return {"weight": (d,), "bias": (d,)} if bias else {"weight": (d,)}


def _module(shapes: Shapes) -> nn.Module:
    """Return nested modules with uninitialised parameters of the shapes given."""
    module = nn.Module()
    for name, part in shapes.items():
        if isinstance(part, tuple):
            module.register_parameter(name, nn.Parameter(torch.empty(*part)))
        else:
            module.add_module(name, _module(part))
    return module


def _rotation(base: float, shape: Shape) -> Rotation:
    """Return cos and sin [length, r/2] of the angles p·θ_f, computed in float32 as transformers does."""
    frequencies = 1.0 / base ** (torch.arange(0, shape.head_size, 2).float() / shape.head_size)  # [r/2]
    angles = torch.arange(shape.length).float()[:, None] * frequencies  # [length, r/2]
    return Rotation(angles.cos(), angles.sin())


@cache  # one compilation for every model of a process
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64  # for several shapes, with and without gradients
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
