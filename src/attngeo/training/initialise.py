"""Initialisations of the query and key weights of a model, written in place before training.

    initialise_         apply the initialisation called `name`
    symmetric_init_     the symmetric one: W_q = W_k in every head, so that the form M = W_q W_kᵀ is symmetric
    INITIALISATIONS     the names

The symmetric initialisation
    symmetric           W_q = W_k: the form of every head is symmetric
Controls, which share some of its properties
    independent         the scale without symmetry
    negative            symmetry, but tokens avoid themselves
    rotated             the norms without symmetry
    self-attending      attention of tokens to themselves with less symmetry
    skewed              attention of tokens to themselves without symmetry
    indefinite          symmetry, but tokens neither attend to themselves nor avoid themselves
    large-symmetric     the symmetric initialisation with the norm of the skewed one
    small-skewed        the skewed initialisation with the norm of the symmetric one
Published initialisations, for comparison
    authors             the recipe of arXiv 2502.10927
    mimetic-0.3, -0.7   a variant of mimetic initialisation, arXiv 2305.09828; with `-value` it also sets the values

They change the query and key weights of self-attention and nothing else (the published ones change values too): biases,
all other weights and cross-attention stay as they are. Row vectors as everywhere: M_h = W_q^h (W_k^{g(h)})ᵀ, where g(h)
is the key head that query head h reads. A layer holds its queries as [*g, m, r, d] and its keys as [*g, r, d]: each key
head is read by m query heads.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor, nn

from attngeo.arguments import whole_number
from attngeo.errors import InputError, LayoutError
from attngeo.io.names import nearest_name
from attngeo.live.checkpoint import (
    AttentionParameters,
    LayerOptions,
    LayerParameters,
    attention_parameters,
    matrix_view,
    require_heads,
)
from attngeo.weights.layout.storage import VALUE_NAMES, ValueRows

__all__ = ["INITIALISATIONS", "Initialisation", "InitialisedLayer", "initialise_", "symmetric_init_"]

# "unit" is the std 1/√d, "half-unit" half of it, a number is a std; "kept", or None, keeps the existing scale.
Scale: TypeAlias = str | float | None
Seed: TypeAlias = int | torch.Generator
_NAMED_SCALES = {"unit": 1.0, "half-unit": 0.5}  # in units of 1/√d


@dataclass(frozen=True)
class InitialisedLayer:
    """One layer whose weights were written."""

    stack: str
    layer: int
    tensors: tuple[str, ...]  # names of the parameters written
    std: tuple[float, float]  # root mean square of the key weights before and after


@dataclass(frozen=True)
class Initialisation:
    """What an initialisation did to a model."""

    name: str
    layers: tuple[InitialisedLayer, ...]
    cross: tuple[str, ...]  # paths of the cross-attention layers, which are left unchanged

    def __str__(self) -> str:
        stacks = ", ".join(dict.fromkeys(layer.stack for layer in self.layers))
        before, after = (sorted(layer.std[i] for layer in self.layers)[len(self.layers) // 2] for i in (0, 1))
        cross = f"; {len(self.cross)} cross-attention layers unchanged" if self.cross else ""
        return f"{self.name}: {len(self.layers)} layers ({stacks}), std of W_k {before:.3g} → {after:.3g}{cross}"

    def __repr__(self) -> str:
        return f"Initialisation({self})"


def symmetric_init_(model: nn.Module, *, scale: Scale = "unit", **options: Unpack[LayerOptions]) -> Initialisation:
    """Set W_q^h ← W_k^{g(h)}: the form of every head becomes symmetric (s = 1) and positive semi-definite.

    In masked pre-training of a post-norm BERT (4 layers, width 256) at learning rate 5e-4 it saved 33% [30, 36] of the
    steps; the larger scale alone, with independent queries and keys, saved 20% [15, 24]. At the best rate, 2e-3, the
    difference from the larger scale alone is −0.019 nats [−0.039, +0.002], p 0.062 with five seeds: undecided. A
    ModernBERT and a LLaMA ended worse with it; it warns where a model has rotary embedding and pre-norm, as both have.
    A BERT of 24 layers did not train with it at 2e-4, where the usual initialisation did (two seeds, 600 steps). See
    docs/initialisation.md.

    scale:   "unit" is std 1/√d: initial logits between different tokens are of order one, those of a token with itself
             about √r. "half-unit" is half of it, a number is a std. The scale was measured at width 256 only, where
             0.045 to 0.0625 ("unit") were good. The existing W_k of a layer is multiplied to that std (root mean
             square), then copied; nothing is drawn at random. "kept" (or None) leaves the scale of W_k as it is: that
             showed no gain, and in two of three seeds at 5e-4 the largest attention logit grew to 592 and 660.
    options: num_heads, stack, layers, unproven, as in `attngeo.score`

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> model = BertForMaskedLM(BertConfig(num_hidden_layers=1))
    >>> attngeo.symmetric_init_(model)
    Initialisation(symmetric, unit scale: 1 layers (encoder), std of W_k 0.02 → 0.0361)
    >>> attngeo.score(model, heads=False).frame["symmetry"].round(6).to_list()
    [1.0]
    """
    return _apply(model, "symmetric", scale, 0, options)


def initialise_(
    model: nn.Module, name: str, *, scale: Scale = None, seed: Seed = 0, **options: Unpack[LayerOptions]
) -> Initialisation | None:
    """Apply the initialisation called `name` in place; "baseline" leaves the model as it is and returns None.

    scale:   as in `symmetric_init_`; None keeps it
    seed:    a number, or a torch.Generator; each initialisation draws from a random stream of its own
    options: num_heads, stack, layers, unproven, as in `attngeo.score`
    """
    check_initialisation(name, scale)
    return None if name == "baseline" else _apply(model, name, scale, seed, options)


def check_initialisation(name: str, scale: Scale = None) -> None:
    """Raise InputError for a name that does not exist, or a scale for an initialisation that has one of its own."""
    if name not in INITIALISATIONS:  # `start` is the key in a config
        raise InputError(f"start {name!r} does not exist{nearest_name(name, INITIALISATIONS)}")
    if scale is not None and not takes_scale(name):
        raise InputError(f"scale = {scale!r}: the {name} initialisation has a scale of its own")


def takes_scale(name: str) -> bool:
    """Return whether the initialisation called `name` multiplies weights to a scale; others have one of their own."""
    return name != "baseline" and bool(_RECIPES[name].rescaled)


def target_std(scale: Scale, width: int) -> float | None:
    """Return the std that `scale` asks for with token vectors of `width` d; None: the existing std is kept.

    >>> target_std("unit", 64), target_std("half-unit", 64), target_std(0.02, 64), target_std("kept", 64)
    (0.125, 0.0625, 0.02, None)
    """
    if scale is None or scale == "kept":
        return None
    if isinstance(scale, str) and scale in _NAMED_SCALES:
        return _NAMED_SCALES[scale] / math.sqrt(width)
    if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < math.inf:
        return float(scale)
    raise InputError(f"scale is {scale!r}, expected 'unit', 'half-unit', 'kept' or a positive number")


# ---- each initialisation sets the weights of one layer


def _symmetric(layer: LayerParameters) -> None:
    """W_q = W_k."""
    layer.query.copy_(_keys_for_queries(layer))  # [*g, m, r, d] ← [*g, 1, r, d]


def _independent(layer: LayerParameters) -> None:
    """The existing W_q and W_k, each multiplied to the std, and nothing else."""


def _negative(layer: LayerParameters) -> None:
    """W_q = −W_k."""
    layer.query.copy_(-_keys_for_queries(layer))


def _indefinite(layer: LayerParameters) -> None:
    """W_q = W_k D, D diagonal, half +1 and half −1.

    The form W_k D W_kᵀ is symmetric (s = 1) and has as many negative eigenvalues as positive ones, so its trace is
    about 0. The signs of D alternate. Two dimensions that rotary position embedding pairs (i and i + r/2) have the same
    sign where 4 divides r, so that the form is symmetric at every offset.
    """
    signs = layer.key.new_tensor([1.0, -1.0]).repeat(layer.key.shape[-2] // 2)  # [r]
    layer.query.copy_(signs[:, None] * _keys_for_queries(layer))


def _rotated(layer: LayerParameters, draw: torch.Generator) -> None:
    """W_q = W_k S, S a random rotation of the head space per head: the same norms."""
    s = _random_rotations(layer.query.shape[:-2], layer.query.shape[-2], draw)  # [*g, m, r, r]
    layer.query.copy_(s.mT @ _double(_keys_for_queries(layer)))  # (W_k S)ᵀ = Sᵀ W_kᵀ


def _self_attending(layer: LayerParameters) -> None:
    """The best rank-r approximation of W_q W_kᵀ + aI, W_q and W_k the existing, independent ones at the std.

    The number a gives M the trace that it has in the symmetric initialisation, so that the mean diagonal logit is the
    same. Much of the trace that rank r allows is symmetric, so the symmetry score falls to about 0.6 only; the skewed
    initialisation reaches 0.
    """
    queries, keys = (_double(side.flatten(0, -3)) for side in (layer.query, layer.key))  # [H, r, d]
    _write_heads(layer, [_rank_r_with_trace(q.T, k.T) for q, k in zip(queries, keys, strict=True)])


def _skewed(layer: LayerParameters, draw: torch.Generator) -> None:
    """W_q = W_k (I + tS), S a random rotation with S² = −I.

    S is skew-symmetric, so x W_k S W_kᵀ xᵀ = 0 and the diagonal logit of every token is exactly that of the symmetric
    initialisation. The number t makes the skew part of M as large as its symmetric part: s = 0.
    """
    size = layer.key.shape[-2]
    turn = _random_rotations(layer.query.shape[:-2], size, draw)  # [*g, m, r, r]
    plane = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=turn.dtype)
    s = turn.mT @ torch.block_diag(*[plane] * (size // 2)) @ turn  # [*g, m, r, r]
    key = _double(_keys_for_queries(layer)).mT  # [*g, 1, d, r]
    gram = key.mT @ key  # [*g, 1, r, r], G = W_kᵀ W_k
    # s(M) = (tr GG + t² tr SGSG) / (tr GG − t² tr SGSG)
    t = (_trace(gram @ gram) / -_trace(s @ gram @ s @ gram)).sqrt()  # [*g, m, 1, 1]
    t = t.nan_to_num(0.0)  # keys that are all zero stay so
    layer.query.copy_((key @ (torch.eye(size, dtype=s.dtype) + t * s)).mT)


# The skewed form has the norm of the symmetric one times √2. To tell the effect of the norm from that of the skew part,
# one of the two is scaled to the norm of the other: W_q and W_k by 2^¼ each.


def _large_symmetric(layer: LayerParameters) -> None:
    """W_q = W_k, both 2^¼ times larger than the scale says."""
    layer.key.mul_(2.0**0.25)
    _symmetric(layer)


def _small_skewed(layer: LayerParameters, draw: torch.Generator) -> None:
    """The skewed initialisation, W_q and W_k 2^¼ times smaller: with the same seed its forms divided by √2."""
    _skewed(layer, draw)
    layer.query.div_(2.0**0.25)
    layer.key.div_(2.0**0.25)


def _authors(layer: LayerParameters, draw: torch.Generator, others: Mapping[str, Tensor]) -> None:
    """Draw Q, K and V as `nn.Linear` does (uniform, std 1/√(3d), biases too), then set W_q ← W_k.

    The authors replace the attention module after the model was initialised, so that its values and biases change too.
    """
    bound = 1 / math.sqrt(layer.width)  # uniform in ±bound has std bound/√3
    for weight in others.values():
        weight.copy_(torch.rand(weight.shape, generator=draw).mul_(2 * bound).sub_(bound))
    _symmetric(layer)


def _mimetic(layer: LayerParameters, draw: torch.Generator, others: Mapping[str, Tensor], strength: float) -> None:
    """Set W_q W_kᵀ of each head to the best rank-r approximation of αZ + βI, with Z_ij ~ N(0, 1/d) and α = β.

    W_q and W_k each take the square roots of the singular values. Where values are set, W_v W_o = 0.4 (Z₂ − I).
    """
    size, d = layer.key.shape[-2], layer.width
    heads = layer.key[..., 0, 0].numel()
    _write_heads(layer, [_identity_like_factors(strength, strength, d, size, draw) for _ in range(heads)])
    if others:
        left, right = _identity_like_factors(0.4, -0.4, d, d, draw)
        values, outputs = others.values()  # W_vᵀ and W_oᵀ, [d, d]
        values.copy_(left.T)
        outputs.copy_(right)


@dataclass(frozen=True)
class _Recipe:
    """An initialisation: how it writes a layer, and what a layer must have for it."""

    title: str
    write: Callable[..., None]  # takes the layer and, where there are any, `draw` and `others`
    rescaled: tuple[str, ...] = ("key",)  # the sides that are multiplied to the scale; none: it has its own scale
    stream: str = ""  # of its random numbers; empty: it draws none
    others: Callable[[AttentionParameters, LayerParameters], dict[str, Tensor]] | None = None  # tensors written besides
    heads: bool = False  # needs the head count
    own_keys: bool = False  # needs a key head for each query head
    even: bool = False  # needs an even head size


def _query_key_value(model: AttentionParameters, layer: LayerParameters) -> dict[str, Tensor]:
    """Return the parameters that hold queries, keys and values of a layer: weights, then biases."""
    names = dict.fromkeys((*layer.found.tensors, _value_name(model, layer)))
    biases = dict.fromkeys(re.sub(r"weight$", "bias", name) for name in names)
    return {name: model.parameters[name] for name in names | biases if name in model.parameters}


def _value_and_output(model: AttentionParameters, layer: LayerParameters) -> dict[str, Tensor]:
    """Return the value and the output projection of a layer as views [out, in], both d×d, by parameter name."""
    found, d = layer.found, layer.width
    if found.storage.value_rows is ValueRows.INTERLEAVED:
        raise LayoutError(
            f"{layer.label}: values are stored between queries and keys; writing them there is not supported"
        )
    value = _value_name(model, layer)
    values = matrix_view(found, value, model.parameters)[-d:]
    around = found.path.rpartition(".")[0]
    candidates = [f"{found.path}.{leaf}.weight" for leaf in _OUTPUT_NAMES] + [f"{around}.output.dense.weight"]
    output = next((name for name in candidates if name in model.parameters), None)
    if output is None:
        raise LayoutError(f"{layer.label}: no output projection found; the initialisation of values needs one")
    outputs = matrix_view(found, output, model.parameters)
    if values.shape != (d, d) or outputs.shape != (d, d):
        raise LayoutError(
            f"{layer.label}: values {list(values.shape)} and output {list(outputs.shape)}; "
            f"the initialisation of values expects [{d}, {d}]"
        )
    return {value: values, output: outputs}


# Names of the output projection below the path of the layer's queries and keys.
_OUTPUT_NAMES = ("o_proj", "out_proj", "o", "out_lin", "c_proj", "dense", "Wo", "wo", "linear_out", "to_out.0", "proj")


def _value_name(model: AttentionParameters, layer: LayerParameters) -> str:
    """Return the name of the parameter that holds the values of a layer."""
    path, key = layer.found.path, layer.found.storage.key
    if layer.found.storage.value_rows is not ValueRows.OWN_TENSOR:
        return key
    leaf = key.removeprefix(path + ".").removesuffix(".weight")
    name = f"{path}.{VALUE_NAMES.get(leaf, '?')}.weight"
    if name not in model.parameters:
        raise LayoutError(f"{layer.label}: no value projection found beside {key}")
    return name


def _mimetic_recipe(strength: float, values: bool = False) -> _Recipe:
    title = f"mimetic {strength:g}{' with values' if values else ''}"
    write = partial(_mimetic, strength=strength)
    others = _value_and_output if values else lambda *_: {}
    return _Recipe(title, write, (), stream="mimetic", others=others, heads=True, own_keys=True)


_BOTH = ("key", "query")
_RECIPES = {
    "symmetric": _Recipe("symmetric", _symmetric),
    "independent": _Recipe("independent", _independent, _BOTH),
    "negative": _Recipe("negative", _negative),
    "rotated": _Recipe("rotated", _rotated, stream="rotated", heads=True),
    "self-attending": _Recipe("self-attending", _self_attending, _BOTH, heads=True, own_keys=True),
    "skewed": _Recipe("skewed", _skewed, stream="skewed", heads=True, even=True),
    "indefinite": _Recipe("indefinite", _indefinite, heads=True, even=True),
    "large-symmetric": _Recipe("large symmetric", _large_symmetric),
    "small-skewed": _Recipe("small skewed", _small_skewed, stream="skewed", heads=True, even=True),
    "authors": _Recipe("the authors' recipe", _authors, (), stream="authors", others=_query_key_value),
    "mimetic-0.3": _mimetic_recipe(0.3),
    "mimetic-0.7": _mimetic_recipe(0.7),
    "mimetic-0.3-value": _mimetic_recipe(0.3, values=True),
    "mimetic-0.7-value": _mimetic_recipe(0.7, values=True),
}
INITIALISATIONS = ("baseline", *_RECIPES)


def _apply(model: nn.Module, name: str, scale: Scale, seed: Seed, options: LayerOptions) -> Initialisation:
    """Multiply the weights of each layer to the std `scale`, then set them from one another.

    All layers are checked before the first is written, so that an error leaves the model as it was.
    """
    recipe = _RECIPES[name]
    given: dict[str, Any] = {"draw": _generator(seed, recipe.stream)} if recipe.stream else {}
    parameters = attention_parameters(model, **options)
    if name == "symmetric" and any(layer.pre_norm and layer.rotary for layer in parameters.layers):
        warnings.warn(
            f"{type(model).__name__}: a model with rotary embedding and a norm before its attention, like ModernBERT "
            "and LLaMA, which ended with a higher loss from a symmetric initialisation (docs/initialisation.md)",
            UserWarning,
            stacklevel=3,
        )
    if recipe.heads:
        require_heads(parameters.layers, recipe.title, shared_keys=not recipe.own_keys)
    others, stds = [], []
    for layer in parameters.layers:
        if recipe.even and layer.key.shape[-2] % 2:
            raise InputError(f"{layer.label}: head size {layer.key.shape[-2]} is odd; the {recipe.title} "
                             "initialisation needs an even one")  # fmt: skip
        std = target_std(scale, layer.width)
        for side in recipe.rescaled:
            now = rms(getattr(layer, side))
            if not math.isfinite(now) or (now == 0 and std is not None):
                raise InputError(f"{layer.label}: its {side} weights have std {now}, expected a positive number")
        stds.append(std)
        others.append({} if recipe.others is None else recipe.others(parameters, layer))
    done = []
    with torch.no_grad():
        for layer, std, besides in zip(parameters.layers, stds, others, strict=True):
            before = rms(layer.key)
            if std is not None:
                for weight in (getattr(layer, side) for side in recipe.rescaled):
                    weight.mul_(std / rms(weight))
            recipe.write(layer, **given, **({} if recipe.others is None else {"others": besides}))
            names = tuple(dict.fromkeys((*layer.found.tensors, *besides)))
            done.append(InitialisedLayer(layer.found.stack, layer.found.layer, names, (before, rms(layer.key))))
    at_scale = f", {scale} scale" if isinstance(scale, str) else "" if scale is None else f", std {scale}"
    return Initialisation(recipe.title + at_scale, tuple(done), parameters.cross)


def rms(weight: Tensor) -> float:
    """Return the root mean square of `weight`, which is the std of weights drawn with mean 0."""
    return float(weight.double().square().mean().sqrt())


# ---- random numbers and matrices


def _generator(seed: Seed, stream: str) -> torch.Generator:
    """Return the generator of a random stream. It draws on the CPU, so that every device gets the same initialisation.

    seed: a number, or a generator, which is returned as it is

    The seed of the generator is a digest of `seed` and `stream`. Were it `seed` itself, an initialisation would draw
    the numbers from which other weights were made: seed 0 is also that of the first matrix of a model.
    """
    if isinstance(seed, torch.Generator):
        return seed
    number = whole_number(seed, "seed", None)
    digest = hashlib.sha256(f"initialisation {stream} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))  # torch's CPU generator uses 32 bits


def _random_rotations(count: tuple[int, ...], size: int, draw: torch.Generator) -> Tensor:
    """Return independent rotations [*count, size, size], uniform on SO(size) (Haar measure), in float64."""
    gauss = torch.randn(*count, size, size, generator=draw, dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without these signs QR is not uniform
    q[..., 0] *= torch.linalg.det(q).sign().unsqueeze(-1)  # determinant 1
    return q


def _identity_like_factors(
    alpha: float, beta: float, d: int, rank: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two factors [d, rank] whose product is the best rank-`rank` approximation of αZ + βI, Z_ij ~ N(0, 1/d)."""
    noise = torch.randn(d, d, generator=draw, dtype=torch.float64) / math.sqrt(d)
    return _best_factors(alpha * noise + beta * torch.eye(d, dtype=torch.float64), rank)


def _rank_r_with_trace(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return W_q, W_k [d, r] with W_q W_kᵀ the best rank-r approximation of query keyᵀ + aI, and trace ‖key‖²."""
    size = key.shape[1]
    # Outside the span of both factors the sum is aI, and all singular values kept exceed a: 2r dimensions suffice.
    basis, _ = torch.linalg.qr(torch.cat([query, key], 1))  # [d, 2r]
    inner = (basis.T @ query) @ (basis.T @ key).T  # [2r, 2r]
    eye = torch.eye(len(inner), dtype=inner.dtype)
    trace = float(key.square().sum())
    low, high = 0.0, 2 * trace / size
    for _ in range(40):  # bisections of the interval of a
        a = (low + high) / 2
        left, right = _best_factors(inner + a * eye, size)  # [2r, r] each
        low, high = (a, high) if float((left * right).sum()) < trace else (low, a)
    return basis @ left, basis @ right


def _best_factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return two factors [n, rank] whose product is the best approximation of `matrix` [n, n] of this rank."""
    u, sigma, v = torch.linalg.svd(matrix)
    root = sigma[:rank].sqrt()
    return u[:, :rank] * root, v[:rank].T * root


def _write_heads(layer: LayerParameters, factors: list[tuple[Tensor, Tensor]]) -> None:
    """Write W_q and W_k, [d, r] each, of every head of a layer."""
    layer.query.copy_(torch.stack([query.T for query, _ in factors]).view(layer.query.shape))
    layer.key.copy_(torch.stack([key.T for _, key in factors]).view(layer.key.shape))


def _keys_for_queries(layer: LayerParameters) -> Tensor:
    """Return the keys as [*g, 1, r, d]: each is read by the m query heads [*g, m, r, d] that share it."""
    return layer.key.unsqueeze(-3)


def _double(weight: Tensor) -> Tensor:
    """Return `weight` as a float64 tensor on the CPU, where random matrices are drawn."""
    return weight.detach().to("cpu", torch.float64)


def _trace(square: Tensor) -> Tensor:
    """[..., n, n] → [..., 1, 1]."""
    return square.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
