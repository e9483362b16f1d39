"""Record the products of queries and keys that a live model computes, and the inputs of its projections.

A model that uses transformers' `AttentionInterface` hands its queries and keys to `record_and_attend`. In every other
model a `TorchFunctionMode` sees the product itself (matmul, bmm, baddbmm, einsum, scaled_dot_product_attention,
multi_head_attention_forward). The same mode sees the input of each projection. While a model is recorded, all positions
are zero (sines are 0, cosines are 1), so that rotary embedding is the identity, unless `rotating` is set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "attngeo_probe"  # of the attention implementation
_PROJECTIONS = 60  # projections kept before a product: many more than one attention layer has
_NORMS = 12  # norms kept before a product
_ANGLES = 8  # tables of angles kept before a product
_PRODUCTS = 400  # products kept in all
_NUMBERS = 4e6  # larger tensors are not kept


@dataclass(frozen=True)
class Projection:
    """One application of a weight to token vectors."""

    tokens: Tensor  # [T, d], the input
    weight: int  # id of the parameter


@dataclass(frozen=True)
class Product:
    """One product of queries and keys."""

    query: Tensor  # [L, N, r], L = all leading axes together
    key: Tensor  # [L or fewer, M, r]
    before: tuple[Projection, ...]  # the projections applied shortly before
    interface: bool  # seen through AttentionInterface
    norms: tuple[tuple[str, Tensor], ...] = ()  # (module path, output [T, d]) of the norms applied shortly before
    angles: tuple[Tensor, ...] = ()  # of which cosines were taken before, where the model rotates
    positions: Tensor | None = None  # [1, N], of the tokens


@dataclass
class ProductRecorder(TorchFunctionMode):
    """Context manager that collects `products` of everything that runs inside it."""

    products: list[Product] = field(default_factory=list)
    normalised: bool = False  # F.normalize was called on queries or keys, and skipped
    norms: list[tuple[str, Tensor]] = field(default_factory=list)
    rotating: bool = False  # sines and cosines keep their values
    angles: list[Tensor] = field(default_factory=list)  # what cosines were taken of

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self._recent: list[Projection] = []
        self._paused = 0  # depth of calls whose inner operations are not the model's own

    def add_product(self, query: Tensor, key: Tensor, *, interface: bool = False) -> None:
        """Keep query [..., N, r] and key [..., M, r]."""
        if query.dim() < 2 or key.dim() < 2 or query.shape[-1] != key.shape[-1] or not query.is_floating_point():
            return
        if len(self.products) > _PRODUCTS or query.numel() > _NUMBERS or key.numel() > _NUMBERS:
            return
        query, key = (t.detach().reshape(-1, t.shape[-2], t.shape[-1]).float().clone() for t in (query, key))
        norms, angles = tuple(self.norms[-_NORMS:]), tuple(self.angles[-_ANGLES:])
        self.products.append(Product(query, key, tuple(self._recent), interface, norms, angles))

    def add_projection(self, tokens: Tensor, weight: Tensor) -> None:
        """Keep tokens [..., d], the input of a projection."""
        if tokens.dim() >= 1 and tokens.is_floating_point() and tokens.numel() < _NUMBERS:
            flat = tokens.detach().reshape(-1, tokens.shape[-1]).float().clone()
            self._recent.append(Projection(flat, id(weight)))
            del self._recent[:-_PROJECTIONS]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._paused:
            return func(*args, **kwargs)
        self._paused += 1  # operations that torch calls inside its own functions are not the model's
        try:
            if self.rotating:
                self._keep_angles(name, args)
            elif name in ("cos", "sin") and isinstance(args[0], Tensor):
                return torch.ones_like(args[0]) if name == "cos" else torch.zeros_like(args[0])
            elif name == "polar":
                return torch.complex(args[0], torch.zeros_like(args[0]))
            if name == "normalize":
                self.normalised = True
                return args[0]
            self._record_call(name, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self._paused -= 1

    def _keep_angles(self, name: str, args: Any) -> None:
        if name in ("cos", "polar") and isinstance(args[-1], Tensor) and args[-1].numel() < _NUMBERS:
            self.angles.append(args[-1].detach().double().clone())

    def _record_call(self, name: str, args: Any, kwargs: Any) -> None:
        """Keep what a call of the torch function `name` projects or multiplies."""

        def given(*names: str) -> list[Any]:
            return [*args, *(kwargs[n] for n in names[len(args) :] if n in kwargs)]

        if name == "linear":
            tokens, weight, *_ = given("input", "weight")
            self.add_projection(tokens, weight)
        elif name == "addmm":
            _, tokens, weight, *_ = given("input", "mat1", "mat2")
            self.add_projection(tokens, weight)
        elif name in ("conv1d", "conv2d"):
            tokens, weight, *_ = given("input", "weight")
            if tokens.dim() >= 3:
                self.add_projection(tokens.flatten(2).transpose(1, 2), weight)
        elif name in ("matmul", "bmm", "__matmul__"):
            left, right, *_ = given("input", "mat2" if "mat2" in kwargs else "other")
            self._matmul(left, right)
        elif name == "baddbmm":
            _, left, right, *_ = given("input", "batch1", "batch2")
            self._matmul(left, right)
        elif name == "einsum":
            self._einsum(args)
        elif name == "scaled_dot_product_attention":
            query, key, *_ = given("query", "key")
            self.add_product(query, key)
        elif name == "multi_head_attention_forward":
            self._multi_head_attention(args, kwargs)

    def _matmul(self, left: Tensor, right: Tensor) -> None:
        if right.dim() == 2:
            self.add_projection(left, right)
        elif right.dim() >= 3 and left.dim() >= 3:
            if left.shape[:-2] != right.shape[:-2]:  # one key head for several query heads
                leading = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
                left, right = left.expand(*leading, -1, -1), right.expand(*leading, -1, -1)
            self.add_product(left, right.transpose(-1, -2))
            self.add_product(right.transpose(-1, -2), left)  # keys first: transposed logits

    def _einsum(self, args: Any) -> None:
        operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
        if not isinstance(args[0], str) or len(operands) != 2 or "->" not in args[0] or "." in args[0]:
            return
        inputs, output = args[0].replace(" ", "").split("->")
        left, right = inputs.split(",")
        for weight, tokens, letters in (
            (operands[1], operands[0], (left, right)),
            (operands[0], operands[1], (right, left)),
        ):
            if isinstance(weight, nn.Parameter):
                # The letters that both share and the output lacks are summed: they become the last axis.
                summed = [c for c in letters[0] if c in letters[1] and c not in output]
                free = [c for c in letters[0] if c not in summed]
                if len(summed) >= 1 and set(letters[0]) == set(summed) | set(free):
                    moved = tokens.permute([letters[0].index(c) for c in free + summed])
                    self.add_projection(moved.flatten(len(free)), weight)
                return
        summed = [c for c in left if c in right and c not in output]
        batch = [c for c in output if c in left and c in right]
        rows = [c for c in left if c not in right]
        columns = [c for c in right if c not in left]
        if len(summed) == len(rows) == len(columns) == 1:
            query = operands[0].permute([left.index(c) for c in batch + rows + summed])
            key = operands[1].permute([right.index(c) for c in batch + columns + summed])
            if query.dim() >= 3:
                self.add_product(query, key)
                self.add_product(key, query)

    def _multi_head_attention(self, args: Any, kwargs: Any) -> None:
        """Repeat the projections of torch.nn.MultiheadAttention as torch documents them; its products are internal."""
        query, key, width, heads, weight = args[0], args[1], args[3], args[4], args[5]  # query, key [N, B, d]
        if weight is None or kwargs.get("use_separate_proj_weight"):
            weight = None
            q_weight, k_weight = kwargs["q_proj_weight"], kwargs["k_proj_weight"]
        else:
            q_weight, k_weight = weight[:width], weight[width : 2 * width]
        self.add_projection(query.transpose(0, 1), weight if weight is not None else q_weight)
        self.add_projection(key.transpose(0, 1), weight if weight is not None else k_weight)
        query, key = (
            projected.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)  # [B, H, N, r]
            for projected in (query @ q_weight.T, key @ k_weight.T)
        )
        self.add_product(query, key)


_current: list[ProductRecorder] = []


def record_and_attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any
) -> Any:
    """Attention function for transformers: record q [B, H, N, r] and k [B, G, M, r], then attend in plain products."""
    recorder = _current[-1]
    mask = attention_mask if isinstance(attention_mask, Tensor) else None
    recorder._paused += 1
    try:
        recorder.add_product(query, key, interface=True)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        logits = query @ key.transpose(-1, -2) * (kwargs.get("scaling") or query.shape[-1] ** -0.5)
        if mask is not None and mask.dim() == 4:
            mask = mask[..., : key.shape[-2]]
            logits = logits.masked_fill(~mask, -1e4) if mask.dtype == torch.bool else logits + mask.clamp_min(-1e4)
        return (logits.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous(), None
    finally:
        recorder._paused -= 1


class recorded_products:
    """`with recorded_products(model) as recorder: model(**inputs)`; norms are recorded where a model is given.

    rotating: positions keep their values, instead of being zero
    """

    def __init__(self, model: nn.Module | None = None, *, rotating: bool = False) -> None:
        self.model, self.rotating = model, rotating

    def __enter__(self) -> ProductRecorder:
        self.recorder = ProductRecorder(rotating=self.rotating)
        self.hooks = []
        for name, module in self.model.named_modules() if self.model is not None else ():
            if "norm" in type(module).__name__.lower() and not any(module.children()):
                self.hooks.append(module.register_forward_hook(self._norm_hook(name)))
        _current.append(self.recorder)
        self.recorder.__enter__()
        return self.recorder

    def _norm_hook(self, name: str) -> Any:
        def keep_output(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() >= 2 and output.numel() < _NUMBERS:
                self.recorder.norms.append((name, output.detach().reshape(-1, output.shape[-1]).float().clone()))

        return keep_output

    def __exit__(self, *exc: Any) -> None:
        self.recorder.__exit__(*exc)
        _current.pop()
        for hook in self.hooks:
            hook.remove()


AttentionInterface.register(NAME, record_and_attend)
AttentionMaskInterface.register(NAME, eager_mask)
