"""Listen to a live model: what entered its projections and which queries met which keys.

Two ears. A model that dispatches through transformers' `AttentionInterface` hands its queries and keys to
`probe`; for every other model a `TorchFunctionMode` sees the product itself (matmul, bmm, baddbmm, einsum,
scaled_dot_product_attention, multi_head_attention_forward). The same mode sees what enters each projection.
While listening, positions are zero: sines vanish and cosines are one, so that rotary embedding is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "attngeo_probe"
_MEMORY = 60  # projections remembered before a product: far more than one attention layer has


@dataclass(frozen=True)
class Projection:
    """One application of a weight to token vectors."""

    tokens: Tensor  # [T, d], what entered
    weight: int  # id of the parameter
    order: int


@dataclass(frozen=True)
class Product:
    """Queries meeting keys once."""

    query: Tensor  # [L, N, r], L = every leading axis folded together
    key: Tensor  # [L or fewer, M, r]
    before: tuple[Projection, ...]  # the projections applied shortly before
    interface: bool
    norms: tuple[tuple[str, Tensor], ...] = ()  # (module path, output [T, d]) of the norms applied shortly before


@dataclass
class Ear(TorchFunctionMode):
    """Context manager that fills `products`; anything run inside it is heard."""

    products: list[Product] = field(default_factory=list)
    normalised: bool = False  # F.normalize was seen (and skipped) on queries or keys
    norms: list[tuple[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self._recent: list[Projection] = []
        self._count = 0
        self._deaf = 0

    def hear(self, query: Tensor, key: Tensor, *, interface: bool = False) -> None:
        if query.dim() < 2 or key.dim() < 2 or query.shape[-1] != key.shape[-1]:
            return
        if not query.is_floating_point() or len(self.products) > 400 or query.numel() > 4e6 or key.numel() > 4e6:
            return
        fold = lambda t: t.detach().reshape(-1, t.shape[-2], t.shape[-1]).float().clone()  # noqa: E731
        norms = tuple(self.norms[-12:])
        self.products.append(Product(fold(query), fold(key), tuple(self._recent), interface, norms))

    def _project(self, tokens: Tensor, weight: Tensor) -> None:
        if tokens.dim() >= 1 and tokens.is_floating_point() and tokens.numel() < 4e6:
            self._count += 1
            flat = tokens.detach().reshape(-1, tokens.shape[-1]).float().clone()
            self._recent.append(Projection(flat, id(weight), self._count))
            del self._recent[:-_MEMORY]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._deaf:
            return func(*args, **kwargs)
        self._deaf += 1  # what torch calls inside its own functions is not the model's doing
        try:
            if name in ("cos", "sin") and isinstance(args[0], Tensor):
                return torch.ones_like(args[0]) if name == "cos" else torch.zeros_like(args[0])
            if name == "polar":
                return torch.complex(args[0], torch.zeros_like(args[0]))
            if name == "normalize":
                self.normalised = True
                return args[0]
            self._listen(name, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self._deaf -= 1

    def _listen(self, name: str, args: Any, kwargs: Any) -> None:
        given = lambda *names: [*args, *(kwargs[n] for n in names[len(args) :] if n in kwargs)]  # noqa: E731
        if name == "linear":
            tokens, weight, *_ = given("input", "weight")
            self._project(tokens, weight)
        elif name == "addmm":
            _, tokens, weight, *_ = given("input", "mat1", "mat2")
            self._project(tokens, weight)
        elif name in ("conv1d", "conv2d"):
            tokens, weight, *_ = given("input", "weight")
            if tokens.dim() >= 3:
                self._project(tokens.flatten(2).transpose(1, 2), weight)
        elif name in ("matmul", "bmm", "__matmul__"):
            left, right, *_ = given("input", "mat2" if "mat2" in kwargs else "other")
            self._product(left, right)
        elif name == "baddbmm":
            _, left, right, *_ = given("input", "batch1", "batch2")
            self._product(left, right)
        elif name == "einsum":
            self._einsum(args)
        elif name == "scaled_dot_product_attention":
            query, key, *_ = given("query", "key")
            self.hear(query, key)
        elif name == "multi_head_attention_forward":
            self._multihead(args, kwargs)

    def _product(self, left: Tensor, right: Tensor) -> None:
        if right.dim() == 2:
            self._project(left, right)
        elif right.dim() >= 3 and left.dim() >= 3:
            if left.shape[:-2] != right.shape[:-2]:  # one key head for many query heads
                leading = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
                left, right = left.expand(*leading, -1, -1), right.expand(*leading, -1, -1)
            self.hear(left, right.transpose(-1, -2))
            self.hear(right.transpose(-1, -2), left)  # keys first: transposed logits

    def _einsum(self, args: Any) -> None:
        operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
        if not isinstance(args[0], str) or len(operands) != 2 or "->" not in args[0] or "." in args[0]:
            return
        inputs, output = args[0].replace(" ", "").split("->")
        left, right = inputs.split(",")
        for param, tokens, letters in (
            (operands[1], operands[0], (left, right)),
            (operands[0], operands[1], (right, left)),
        ):
            if isinstance(param, torch.nn.Parameter):
                # x,W → the letters they share are summed: bring them last
                shared = [c for c in letters[0] if c in letters[1] and c not in output]
                free = [c for c in letters[0] if c not in shared]
                if len(shared) >= 1 and set(letters[0]) == set(shared) | set(free):
                    moved = tokens.permute([letters[0].index(c) for c in free + shared])
                    self._project(moved.flatten(len(free)), param)
                return
        summed = [c for c in left if c in right and c not in output]
        batch = [c for c in output if c in left and c in right]
        rows = [c for c in left if c not in right]
        columns = [c for c in right if c not in left]
        if len(summed) == len(rows) == len(columns) == 1:
            query = operands[0].permute([left.index(c) for c in batch + rows + summed])
            key = operands[1].permute([right.index(c) for c in batch + columns + summed])
            if query.dim() >= 3:
                self.hear(query, key)
                self.hear(key, query)

    def _multihead(self, args: Any, kwargs: Any) -> None:
        """torch.nn.MultiheadAttention never shows its products: redo its projections as torch documents them."""
        query, key, heads, weight = args[0], args[1], args[4], args[5]  # [N, B, d]
        width = args[3]
        if weight is None or kwargs.get("use_separate_proj_weight"):
            weight = None
            q_weight, k_weight = kwargs["q_proj_weight"], kwargs["k_proj_weight"]
        else:
            q_weight, k_weight = weight[:width], weight[width : 2 * width]
        self._project(query.transpose(0, 1), weight if weight is not None else q_weight)
        self._project(key.transpose(0, 1), weight if weight is not None else k_weight)
        split = lambda t: t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)  # noqa: E731  [B, H, N, r]
        self.hear(split(query @ q_weight.T), split(key @ k_weight.T))


_current: list[Ear] = []


def probe(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
    """An attention function for transformers: records q [B, H, N, r] and k [B, G, M, r], then attends plainly."""
    ear = _current[-1]
    mask = attention_mask if isinstance(attention_mask, Tensor) else None
    ear._deaf += 1
    try:
        ear.hear(query, key, interface=True)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        logits = query @ key.transpose(-1, -2) * (kwargs.get("scaling") or query.shape[-1] ** -0.5)
        if mask is not None and mask.dim() == 4:
            mask = mask[..., : key.shape[-2]]
            logits = logits.masked_fill(~mask, -1e4) if mask.dtype == torch.bool else logits + mask.clamp_min(-1e4)
        return (logits.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous(), None
    finally:
        ear._deaf -= 1


class listening:
    """`with listening(model) as ear: model(**feed)`; norms are heard only where a model is given."""

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self.model = model

    def __enter__(self) -> Ear:
        self.ear = Ear()
        self.hooks = []
        for name, module in self.model.named_modules() if self.model is not None else ():
            if "norm" in type(module).__name__.lower() and not any(module.children()):
                self.hooks.append(module.register_forward_hook(self._hook(name)))
        _current.append(self.ear)
        self.ear.__enter__()
        return self.ear

    def _hook(self, name: str) -> Any:
        def heard(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() >= 2 and output.numel() < 4e6:
                self.ear.norms.append((name, output.detach().reshape(-1, output.shape[-1]).float().clone()))

        return heard

    def __exit__(self, *exc: Any) -> None:
        self.ear.__exit__(*exc)
        _current.pop()
        for hook in self.hooks:
            hook.remove()


AttentionInterface.register(NAME, probe)
AttentionMaskInterface.register(NAME, eager_mask)
