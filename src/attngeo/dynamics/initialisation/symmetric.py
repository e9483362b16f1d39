"""Starts for pre-training: the symmetric one, and the controls that tell its effects apart.

Each changes the query and key weights of every self-attention layer in place and nothing else: biases, values, every
other weight and cross-attention stay as they are. What is drawn comes from `seed` alone. Row vectors as everywhere:
M_h = W_q^h (W_k^{g(h)})ᵀ, and a head's weight is stored as Wᵀ, [r, d].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from attngeo.errors import InputError
from attngeo.live.parameters import Live, Projection, live, need_heads

Scale: TypeAlias = str | float | None
Seed: TypeAlias = int | torch.Generator


@dataclass(frozen=True)
class StartedLayer:
    """One layer that was started anew."""

    stack: str
    layer: int
    tensors: tuple[str, ...]  # parameters written
    std: tuple[float, float]  # root mean square of the key weights, before and after


@dataclass(frozen=True)
class Start:
    """What a start did to a model."""

    name: str
    layers: tuple[StartedLayer, ...]
    cross: tuple[str, ...]  # cross-attention, left alone

    def __str__(self) -> str:
        stacks = ", ".join(dict.fromkeys(layer.stack for layer in self.layers))
        before, after = (sorted(layer.std[i] for layer in self.layers)[len(self.layers) // 2] for i in (0, 1))
        left = f"; {len(self.cross)} cross-attention layers left alone" if self.cross else ""
        return f"{self.name}: {len(self.layers)} layers ({stacks}), std of W_k {before:.3g} → {after:.3g}{left}"


def symmetric_init_(model: Any, *, scale: Scale = None, **where: Any) -> Start:
    """W_q^h ← W_k^{g(h)}: every head's form symmetric (s = 1) and positive semi-definite.

    With scale="unit" the start to use for masked pre-training: it saved a third of the steps at the better of two
    learning rates and three quarters at the lower one (docs/initialisation.md). Causal training ends a little worse.

    scale   None keeps the scale of W_k; "unit" is std 1/√d, where logits between tokens start at order one and those
            of a token with itself at about √r; a number is a std.
            The existing W_k is multiplied to that std (root mean square of a layer), then copied: nothing is drawn.
    where   num_heads, stack, layers, unproven: as in `score`

    >>> model = BertForMaskedLM(BertConfig())
    >>> attngeo.symmetric_init_(model, scale="unit")
    """

    def copy(one: Projection) -> None:
        _rescale(one.key, one, scale)
        one.query.copy_(one.key.unsqueeze(-3))  # [*g, m, r, d] ← [*g, 1, r, d]

    return _start("symmetric", scale, live(model, **where), copy)


def independent_init_(model: Any, *, scale: Scale = "unit", **where: Any) -> Start:
    """Control, scale without symmetry: the existing W_q and W_k, each multiplied to the std `scale`."""

    def widen(one: Projection) -> None:
        _rescale(one.key, one, scale)
        _rescale(one.query, one, scale)

    return _start("independent", scale, live(model, **where), widen, ("key", "query"))


def negative_init_(model: Any, *, scale: Scale = "unit", **where: Any) -> Start:
    """Control, symmetry without attending to oneself: W_q = −W_k."""

    def negate(one: Projection) -> None:
        _rescale(one.key, one, scale)
        one.query.copy_(-one.key.unsqueeze(-3))

    return _start("negative", scale, live(model, **where), negate)


def rotated_init_(model: Any, *, scale: Scale = "unit", seed: Seed = 0, **where: Any) -> Start:
    """Control, the same norms without symmetry: W_q = W_k S, S a random rotation of the head space for each head."""
    draw = generator(seed)

    def rotate(one: Projection) -> None:
        _rescale(one.key, one, scale)
        turn = rotations(one.query.shape[:-2], one.query.shape[-2], draw)  # [*g, m, r, r]
        one.query.copy_(turn.transpose(-1, -2) @ _double(one.key).unsqueeze(-3))

    return _start("rotated", scale, _headed(model, "rotated", True, where), rotate)


def self_attending_init_(model: Any, *, scale: Scale = "unit", **where: Any) -> Start:
    """Control, attending to oneself with less symmetry: the best rank-r part of W_q W_kᵀ + aI.

    W_q and W_k are the existing, independent ones at std `scale`; a is such that tr M is that of the symmetric start,
    so that the mean diagonal logit is the same. Much of what rank r allows in the trace is symmetric: the score falls
    to about 0.6 only. `skewed_init_` goes to 0.
    """

    def attend(one: Projection) -> None:
        _rescale(one.key, one, scale)
        _rescale(one.query, one, scale)
        keys, queries = one.key.flatten(0, -3), one.query.flatten(0, -3)  # [H, r, d]; a copy where it must be
        made = [_attending(q.T, k.T) for q, k in zip(_double(queries), _double(keys), strict=True)]
        one.query.copy_(torch.stack([q.T for q, _ in made]).view(one.query.shape))
        one.key.copy_(torch.stack([k.T for _, k in made]).view(one.key.shape))

    return _start("self-attending", scale, _headed(model, "self-attending", False, where), attend, ("key", "query"))


def skewed_init_(model: Any, *, scale: Scale = "unit", seed: Seed = 0, **where: Any) -> Start:
    """Control, attending to oneself with no symmetry: W_q = W_k (I + tS), S a random skew rotation (S² = −I).

    x W_k S W_kᵀ xᵀ = 0, so every token's diagonal logit is exactly that of the symmetric start, while t makes the skew
    part of M as large as the symmetric part: s = 0.
    """
    draw = generator(seed)

    def skew(one: Projection) -> None:
        _rescale(one.key, one, scale)
        size = one.key.shape[-2]
        turn = rotations(one.query.shape[:-2], size, draw)  # [*g, m, r, r]
        plane = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=turn.dtype)
        s = turn.transpose(-1, -2) @ torch.block_diag(*[plane] * (size // 2)) @ turn
        key = _double(one.key).unsqueeze(-3).transpose(-1, -2)  # [*g, 1, d, r]
        gram = key.transpose(-1, -2) @ key
        # s(M) = (tr GG + t² tr SGSG)/(tr GG − t² tr SGSG), G = W_kᵀW_k
        t = (_trace(gram @ gram) / -_trace(s @ gram @ s @ gram)).sqrt()
        one.query.copy_((key @ (torch.eye(size, dtype=s.dtype) + t * s)).transpose(-1, -2))

    found = _headed(model, "skewed", True, where)
    for one in found.projections:
        if one.key.shape[-2] % 2:
            raise InputError(f"{one.where}: head size {one.key.shape[-2]} is odd, the skewed start needs an even one")
    return _start("skewed", scale, found, skew)


def generator(seed: Seed) -> torch.Generator:
    """Draws are made on the CPU, so that a start is the same on every device."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def rotations(count: tuple[int, ...], size: int, draw: torch.Generator) -> torch.Tensor:
    """[*count, size, size] independent rotations, uniform (Haar), determinant 1."""
    gauss = torch.randn(*count, size, size, generator=draw, dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without the signs QR is not uniform
    q[..., 0] *= torch.linalg.det(q).sign().unsqueeze(-1)
    return q


def _attending(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """W_q, W_k [d, r] with W_q W_kᵀ the best rank-r part of query keyᵀ + aI and trace ‖key‖²."""
    size = key.shape[1]
    # Outside the span of both factors the sum is aI, and every singular value kept is above a: 2r dimensions suffice.
    basis, _ = torch.linalg.qr(torch.cat([query, key], 1))  # [d, 2r]
    inner = (basis.T @ query) @ (basis.T @ key).T
    eye = torch.eye(len(inner), dtype=inner.dtype)

    def part(a: float) -> tuple[torch.Tensor, torch.Tensor]:
        u, sigma, v = torch.linalg.svd(inner + a * eye)
        root = sigma[:size].sqrt()
        return u[:, :size] * root, v[:size].T * root

    wanted = float(key.square().sum())
    low, high = 0.0, 2 * wanted / size
    for _ in range(40):
        a = (low + high) / 2
        left, right = part(a)
        low, high = (a, high) if float((left * right).sum()) < wanted else (low, a)
    return basis @ left, basis @ right


def _start(
    name: str,
    scale: Scale,
    found: Live,
    write: Callable[[Projection], None],
    used: tuple[str, ...] = ("key",),
) -> Start:
    """Write every layer; what cannot be done, for the weights `used`, is said before the first is touched."""
    done = []
    with torch.no_grad():
        for one in found.projections:
            for side in used:
                _check(getattr(one, side), f"{one.where}: its {side} weights", _target(one, scale))
        for one in found.projections:
            before = rms(one.key)
            write(one)
            done.append(StartedLayer(one.stack, one.layer, one.tensors, (before, rms(one.key))))
    return Start(_name(name, scale), tuple(done), found.cross)


def _check(weight: torch.Tensor, what: str, target: float | None) -> None:
    now = rms(weight)
    if not math.isfinite(now):
        raise InputError(f"{what} hold NaN or infinity, finite ones expected")
    if now == 0 and target is not None:
        raise InputError(f"{what} have std 0, nothing to multiply to {target:.3g}")


def _headed(model: Any, start: str, grouped: bool, where: dict[str, Any]) -> Live:
    found = live(model, **where)
    need_heads(found.projections, start, grouped)
    return found


def _name(name: str, scale: Scale) -> str:
    return name if scale is None else f"{name}, {scale} scale" if scale == "unit" else f"{name}, std {scale}"


def _target(one: Projection, scale: Scale) -> float | None:
    """The std asked for; None where the existing one is kept."""
    if scale is None or scale == "unit":
        return None if scale is None else 1 / math.sqrt(one.width)
    try:
        target = math.nan if isinstance(scale, (str, bool)) else float(scale)
    except TypeError:
        target = math.nan
    if not 0 < target < math.inf:
        raise InputError(f"scale is {scale!r}, expected None, 'unit' or a positive number")
    return target


def _rescale(weight: torch.Tensor, one: Projection, scale: Scale) -> None:
    """Multiply to the target std, in place."""
    if (target := _target(one, scale)) is not None:
        weight.mul_(target / rms(weight))


def rms(weight: torch.Tensor) -> float:
    """Root mean square: the std of weights drawn about 0."""
    return float(weight.double().square().mean().sqrt())


def _double(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().to("cpu", torch.float64)


def _trace(square: torch.Tensor) -> torch.Tensor:
    return square.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
