"""A model in pre-training: its parameters, the functions of tensors that the architectures share, and its loss.

An architecture is a subclass of `Model` with functions of tensors, and with the names and shapes of the weights that
they take. Parameters have the names that transformers gives them, so that `state_dict` is a checkpoint. Weights are
kept in float32 and multiplied in the type of x; norms, rotations and the loss are computed in float32.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attngeo.weights.layout.rotary import RotaryPairs

Shapes: TypeAlias = Mapping[str, tuple[int, ...] | None]  # of parameters, by name; None: this layer has none
Weights: TypeAlias = Sequence[Any]  # tensors, in the order in which a function takes them; None: there is none


# ---- functions of tensors


class Setting(NamedTuple):
    """What the layers of a model have in common, besides their weights."""

    heads: int
    causal: bool
    rotation: Tensor | None = None  # [2, length, r/2], cos and sin of the angles; None: nothing rotates


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, computed in the type of x."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Return LayerNorm(x), computed in float32 and returned in the type of x."""
    return F.layer_norm(x.float(), x.shape[-1:], gain, bias, epsilon).to(x.dtype)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Return RMSNorm(x), computed in float32 and returned in the type of x."""
    return F.rms_norm(x.float(), x.shape[-1:], gain, epsilon).to(x.dtype)


def split_heads(qkv: Tensor, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of fused projections [rows, length, 3d]; q and k are rotated."""
    rows, length, width = qkv.shape
    q, k, v = qkv.view(rows, length, 3, setting.heads, width // (3 * setting.heads)).unbind(2)
    if setting.rotation is not None:
        q, k = rotate(q, setting.rotation), rotate(k, setting.rotation)  # [rows, length, heads, r]
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries or keys [rows, length, heads, r] by their positions; dimension i is paired with i + r/2."""
    cos, sin = rotation[:, : x.shape[1], None]  # [length, 1, r/2]
    first, second = x.float().chunk(2, -1)  # [rows, length, heads, r/2]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, self_bias: Tensor | None) -> Tensor:
    """Return what the heads read, side by side: [rows, length, d].

    q, k, v:   [rows, heads, length, r]
    self_bias: [], added to the logit of each token with itself; None: nothing is added
    """
    rows, heads, length, size = q.shape
    if self_bias is None:
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # [rows, heads, length, r]
    else:
        added = logit_bias(length, causal, self_bias).to(q.dtype)  # [length, length]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return a.transpose(1, 2).reshape(rows, length, heads * size)


def logit_bias(length: int, causal: bool, self_bias: Tensor) -> Tensor:
    """Return what is added to the logits [length, length]: `self_bias` on the diagonal, −∞ on keys not yet seen."""
    added = torch.eye(length, device=self_bias.device) * self_bias
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool, device=self_bias.device).triu(1)
        added = added.masked_fill(hidden, -torch.inf)
    return added


class SelectRows(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Rows of x [m, d] at distinct positions [n], as [n, d].

    Its gradient is a plain copy; the gradient of ordinary indexing would add atomically, in no fixed order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.rows = x.shape[0]
        return x.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_copy_(0, positions, grad), None


# ---- the mean cross-entropy of an output layer, logits = h Wᵀ + b
#
# The logits [n, vocabulary] are the largest tensor of a training step. In training, the pass that computes the loss
# also writes their gradient, (softmax(logits) − one-hot(target))/n, so that no later pass has to read them.


def mean_loss(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy [] in nats of h [n, d] with targets [n]; weight: [vocabulary, d]."""
    return F.cross_entropy(linear(h, weight, bias).float(), targets)


def loss_and_gradients(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return `mean_loss` and its gradients for h, weight and bias, each in the type of what it belongs to."""
    logits = linear(h, weight, bias).float()  # [n, vocabulary]
    total = logits.logsumexp(-1, keepdim=True)  # [n, 1], log Σ exp
    loss = (total - logits.gather(-1, targets.unsqueeze(-1))).mean()
    is_target = torch.arange(logits.shape[-1], device=h.device) == targets.unsqueeze(-1)  # [n, vocabulary]
    error = ((torch.exp(logits - total) - is_target.float()) / len(targets)).to(h.dtype)  # [n, vocabulary]
    of_bias = None if bias is None else error.sum(0, dtype=bias.dtype)  # [vocabulary]
    return loss, error @ weight.to(h.dtype), (error.mT @ h).to(weight.dtype), of_bias


class OutputLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """`mean_loss` for training; `compute` is `loss_and_gradients`, compiled or not."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, compute: Callable[..., Any]
    ) -> Tensor:
        loss, *gradients = compute(h, weight, bias, targets)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(part if part is None else part * grad for part in ctx.saved_tensors), None, None


# ---- models


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
    pad: int = 0  # id of [PAD]

    @property
    def head_size(self) -> int:
        """Return r."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Parts:
    """The parameters of an architecture, in the order in which its functions take them."""

    embeddings: Shapes  # first the token embedding, which is also the weight of the output layer
    layers: Sequence[Shapes]  # within each layer
    head: Shapes  # between the last layer and the output layer
    output_bias: str | None = None


@dataclass(frozen=True)
class TransformersConfig:
    """The content of transformers' config.json."""

    settings: Mapping[str, object]

    def to_dict(self) -> dict[str, object]:
        """Return the settings."""
        return dict(self.settings)


class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model in pre-training. The functions of a layer take its weights, so that one compilation serves all layers.

    dtype: type of the matrix products and of the activations between layers
    compiled: whether the functions of a layer are compiled with torch.compile
    self_bias: number per layer that is added to the logit of each token with itself; it is not trained
    """

    layer_path: ClassVar[str]  # path of the layers, up to their number
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
        self.config = TransformersConfig(_common_settings(shape) | self.transformers_config(shape))
        parts = self.parts(shape)
        self.embedding_weights = self._register("", parts.embeddings)
        self.layer_weights: list[Weights] = [
            self._register(f"{self.layer_path}.{number}.", layer) for number, layer in enumerate(parts.layers)
        ]
        self.head_weights = self._register("", parts.head)
        bias = self._register("", {parts.output_bias: (shape.vocabulary,)}) if parts.output_bias else (None,)
        self.output_weights = (self.embedding_weights[0], *bias)
        self.self_bias = None if self_bias is None else tuple(self_bias)
        self.register_buffer("_bias", None if self_bias is None else torch.tensor(self.self_bias), persistent=False)
        rotation = None if self.rotary_base is None else _rotation(self.rotary_base, shape)
        self.register_buffer("_rotation", rotation, persistent=False)
        functions: list[Callable[..., Any]] = [
            self.embed,
            self.layer,
            self.output_features,
            mean_loss,
            loss_and_gradients,
        ]
        self._embed, self._layer, self._output_features, self._mean_loss, self._loss_and_gradients = (
            _compiled(function) if compiled else function for function in functions
        )

    def _register(self, path: str, shapes: Shapes) -> Weights:
        """Register parameters without values in nested modules, and return them in the same order."""
        weights: list[nn.Parameter | None] = []
        for name, shape in shapes.items():
            module: nn.Module = self
            *words, leaf = f"{path}{name}".split(".")
            for word in words if shape else ():
                if word not in module._modules:
                    module.add_module(word, nn.Module())
                module = module._modules[word]
            weights.append(None if shape is None else nn.Parameter(torch.empty(*shape)))
            if shape is not None:
                module.register_parameter(leaf, weights[-1])
        return tuple(weights)

    # ---- what an architecture defines

    @staticmethod
    @abstractmethod
    def parts(shape: Shape) -> Parts:
        """Return the names and shapes of all parameters."""

    @staticmethod
    @abstractmethod
    def transformers_config(shape: Shape) -> dict[str, object]:
        """Return what transformers' config.json has beside the settings that all architectures have in common."""

    @abstractmethod
    def query_key(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the query and key weights of a layer, as they are stored: [out, in]."""

    @staticmethod
    @abstractmethod
    def embed(ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the embeddings [rows, length, d] of token ids [rows, length]."""

    @staticmethod
    @abstractmethod
    def attention_inputs(x: Tensor, weights: Weights, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v [rows, heads, length, r] of one layer for its input x [rows, length, d]; q, k are rotated."""

    @staticmethod
    @abstractmethod
    def layer(x: Tensor, weights: Weights, setting: Setting, self_bias: Tensor | None) -> Tensor:
        """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""

    @staticmethod
    @abstractmethod
    def final_norm(x: Tensor, weights: Weights) -> Tensor:
        """Return the normalised output of the last layer, [..., d]."""

    @staticmethod
    @abstractmethod
    def output_features(x: Tensor, weights: Weights) -> Tensor:
        """Return the features [..., d] that the output layer maps to logits, for x before the final norm."""

    @staticmethod
    def initial_std(name: str, shape: Shape) -> float:
        """Return the std of the initial values of a matrix."""
        return 0.02

    # ---- what all have in common

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
        return Setting(self.shape.heads, self.shape.causal, self._rotation)

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
        h = self.output_features(self.encode(ids), self.head_weights)  # [rows, length, d]
        return linear(h, *self.output_weights)


def with_bias(shape: tuple[int, ...], *names: str) -> dict[str, tuple[int, ...]]:
    """Return the parameters of linear maps, of shape [out, in], or of norms, [d], with their biases."""
    return {f"{name}.{leaf}": size for name in names for leaf, size in (("weight", shape), ("bias", shape[:1]))}


def _common_settings(shape: Shape) -> dict[str, object]:
    """Return the settings that every config.json has under the same names."""
    return {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.length,
        "initializer_range": 0.02,
        "pad_token_id": shape.pad,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _rotation(base: float, shape: Shape) -> Tensor:
    """Return cos and sin [2, length, r/2] of the angles p·θ_f, computed in float32 as transformers does."""
    frequencies = 1.0 / base ** (torch.arange(0, shape.head_size, 2).float() / shape.head_size)  # [r/2]
    angles = torch.arange(shape.length).float()[:, None] * frequencies  # [length, r/2]
    return torch.stack([angles.cos(), angles.sin()])


@cache  # one compilation for every model of a process
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64  # for several shapes, with and without gradients
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled
