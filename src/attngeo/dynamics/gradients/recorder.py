"""Hear every self-attention of one run: its token vectors, queries and keys, and a leaf that moves its logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attngeo.dynamics.gradients.projections import Place
from attngeo.errors import InputError
from attngeo.live.attention_modules import Attention, Stack


@dataclass(frozen=True, eq=False)
class Projected:
    """A projection at work: the token vectors it was given and what it made of them, a node of the graph."""

    given: torch.Tensor  # [B, N, d]
    made: torch.Tensor  # [B, N, out]


@dataclass(frozen=True, eq=False)
class Use:
    """One use of an attention module."""

    place: Place
    path: str
    x: torch.Tensor  # [B, N, d], what the projections were given
    query: torch.Tensor  # [B, H, N, r], as they are multiplied: bias, rotation and norm included
    key: torch.Tensor  # [B, G, N, r]
    leaf: torch.Tensor  # [B, H, N, N], added to the logits behind scale, soft-cap and bias
    scale: float
    softcap: float | None
    made: Mapping[str, torch.Tensor]  # tensor → [B, N, out]


class Listener:
    """What `recording` sends the attention of a model to; attends in the model's own plain way."""

    def __init__(self, kind: str, heard: tuple[Attention, ...], places: Mapping[int, Place]) -> None:
        self.kind, self.places = kind, places
        self.stack = Stack("self-attention", heard, ())
        self.by_module = {id(one.module): one for one in heard}
        self.uses: list[Use] = []
        self._now: dict[int, dict[str, Projected]] = {}
        self._entering: dict[int, Any] = {}

    def entered(self, module: Any, *_: Any) -> None:
        """A module's forward begins: it may attend once."""
        self._now[id(module)] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Hear the projections, and what the modules themselves are given."""
        with ExitStack() as stack:
            for one in self.stack.attentions:
                hook = one.module.register_forward_pre_hook(self._given, with_kwargs=True)
                stack.callback(hook.remove)
                for name, module in self.places[id(one.module)].projections.items():
                    hook = module.register_forward_hook(self._projected(id(one.module), name))
                    stack.callback(hook.remove)
            yield

    def _given(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._entering[id(module)] = named.get("hidden_states", given[0] if given else None)

    def _projected(self, owner: int, name: str) -> Any:
        def hook(module: Any, given: tuple[Any, ...], made: Any) -> Any:
            made = _node(made)
            if owner in self._now and given:
                self._now[owner][name] = Projected(given[0], made)
            return made

        return hook

    def attend(self, one: Attention, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        """Attend in the model's own plain way with a leaf for a mask; query [B, H, N, r], key [B, G, N, r]."""
        now = self._now.pop(id(one.module), None)
        if now is None or query.dim() != 4:
            raise InputError(f"{self.kind}: {one.path} attends piece by piece (windows or blocks), not as one matrix")
        if query.shape[2] != key.shape[2]:
            raise InputError(
                f"{self.kind}: {one.path} has {query.shape[2]} queries and {key.shape[2]} keys, as many expected: "
                "keys of a cache or of another sequence have no token vectors here"
            )
        place = self.places[id(one.module)]
        # Views of their own: what else the model does with queries and keys must not count as attending.
        query, key = _node(query).view_as(query), _node(key).view_as(key)
        leaf, mask = _leaf(mask, query, key)
        output, weights = one.eager(one.module, query, key, value, mask, **kwargs)
        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        made = {name: projected.made for name, projected in now.items()}
        x = self._tokens(one, place, now, query)
        self.uses.append(Use(place, one.path, x, query, key, leaf, scale, kwargs.get("softcap"), made))
        return output, weights

    def _tokens(self, one: Attention, place: Place, now: Mapping[str, Projected], query: Any) -> Any:
        """[B, N, d] what the projections were given, the module itself where they are not known."""
        sides = [now[name].given for name in dict.fromkeys(place.inputs) if name in now]
        if len(sides) == 2 and sides[0] is not sides[1] and not torch.equal(*sides):
            raise InputError(f"{self.kind}: {one.path} makes queries and keys of different vectors, not self-attention")
        x = sides[0] if sides else self._entering.get(id(one.module))
        batch, _, length, _ = query.shape
        if not isinstance(x, torch.Tensor) or x.numel() != batch * length * x.shape[-1]:
            found = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise InputError(f"{self.kind}: {one.path} was given {found}, vectors of {batch}×{length} tokens expected")
        return x.detach().reshape(batch, length, -1)


def _node(value: torch.Tensor) -> torch.Tensor:
    """`value` as part of the graph: with frozen weights nothing before the first attention is."""
    return value if value.requires_grad else value.detach().requires_grad_()


def _leaf(mask: Any, query: Any, key: Any) -> tuple[Any, Any]:
    """A leaf [B, H, N, N] whose gradient is that of the logits, and the additive mask it is, or is part of."""
    shape = (*query.shape[:3], key.shape[2])
    if mask is None or mask.requires_grad:  # a bias made of the tokens: what flows through it must go on flowing
        leaf = torch.zeros(shape, dtype=query.dtype, device=query.device, requires_grad=True)
        return leaf, leaf if mask is None else mask[..., : shape[3]] + leaf
    mask = mask[(None,) * (4 - mask.dim())][..., : shape[3]]
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    # Only ever to more digits, and no lower than float32 goes: the lowest number of a wide type is infinite in a
    # narrow one, and a softmax that rounds to float32 makes NaN of a row of those (padding behind a window).
    wide = torch.promote_types(mask.dtype, query.dtype)
    mask = mask.to(wide).clamp(min=max(torch.finfo(wide).min, torch.finfo(torch.float32).min))
    leaf = mask.expand(shape).clone().requires_grad_()
    return leaf, leaf


class FullSoftmax(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Softmax over logits in their own precision, as fused attention does, where plain attention rounds to float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "softmax" and args and kwargs.get("dtype") == torch.float32:
            scores = args[0]
            if scores.dtype == torch.float64 and scores.dim() == 4:
                kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)
