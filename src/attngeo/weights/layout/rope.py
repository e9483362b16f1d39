"""Rotary position embedding: from the facts about a model type and the config of a layer to its rotary pairs.

Settings. A config states base, share and scaling of a layer in the spelling of its year: `rope_settings`.

Kinds. In some models not all layers rotate alike: "full_attention", "sliding_attention", …: `layer_kind`.

Frequencies. For n pairs made of m = 2n dimensions and base b, the plain frequencies are θ_f = b^(−2f/m), f = 0 … n − 1.
A scaling type changes them so that a model can read more positions than it was first trained on: `frequencies`.

    linear        θ / s
    dynamic       θ within the window; only beyond it does the base grow
    proportional  b^(−2f/r) for the first share of all r/2 pairs of the head, 0 for the rest; then divided by s
    llama3        θ / s for slow pairs, θ for fast ones, a mixture between
    yarn          θ / s for slow pairs, θ for fast ones, a linear ramp between
    longrope      θ / s_f with one number per pair
    divided       the same, without an attention factor: the numbers that GGUF files store for llama3

yarn and longrope also multiply queries and keys by an attention factor.

Axes. The pairs of image models follow the row or the column of a patch. With m rotating dimensions, n = m/2 pairs and
θ(k) the plain frequencies of k dimensions, the pairs are, in order:

    blocks       θ(m/2) for rows, then θ(m/2) for columns
    split        every other frequency of θ(m), from the first on, for rows; the others for columns
    interleaved  each frequency of θ(m/2) once for rows, once for columns
    separate     as blocks, but each axis pairs dimensions within its own half of the head

Rules. A rule is a mapping that `tools/proof` found on a live model: `find_rotary`.

    site     the end of the attention's template, such as "layers.*.self_attn"
    kind     the kind of the layers it holds for; left out: all layers
    when     values of config switches under which it was found; left out: their default values
    pairs    "none" (nothing rotates), "halves" (i and i + n), "neighbours" (2i and 2i + 1) or "unknown" (not proved)
    size     how many dimensions rotate: "head" (all), "share" (the config gives a share), or the config key that counts
             them
    at       "start" or "end" of the head; where the rotating dimensions are
    back     true: pairs rotate the other way, by −Δθ
    axes     how the pairs follow the row and the column of an image patch; left out: one axis
    reads    what the live model was shown to read from its config: "base", "share", "scaling" or one scaling type
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attngeo.arguments import is_whole
from attngeo.arrays import Floats
from attngeo.errors import AttngeoError, LayoutError, first_line
from attngeo.weights.layout.facts import Family, Scope, ends_with, family
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.rotary import RotaryPairs

# Names of one setting at the top level of a config, the present one first.
BASES = ("rope_theta", "rotary_emb_base", "rotary_embedding_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", "rope_pct")
# Names of the number of positions that a model was made for.
WINDOWS = ("max_position_embeddings", "n_positions", "max_sequence_length", "context_length", "seq_length")
# Bases of the layers that attend to everything and of those with a sliding window, in configs without rope_parameters.
_BASES_BY_KIND = {
    "full_attention": ("global_rope_theta", "rope_theta"),
    "sliding_attention": ("local_rope_theta", "rope_local_base_freq", "swa_rope_theta"),
}
# Names of scaling types that mean another one; multimodal sections do not change the frequencies of text.
_SYNONYMS = {"su": "longrope", "mrope": "default", "none": "default"}


class RopeConfigError(LayoutError):
    """A config contradicts itself about rotary embedding."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"config.json: {key} is {value!r}, expected {expected}")


@dataclass(frozen=True)
class RopeSettings:
    """Settings of one layer; what is missing has the value that makes it without effect."""

    base: float
    kind: str = "default"  # the scaling type
    share: float = 1.0  # of the dimensions of a head that rotate
    window: int | None = None  # number of positions the model was made for
    scaling: Mapping[str, Any] = field(default_factory=dict)  # numbers of the scaling type, as given

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of the scaling type."""
        value = self.scaling.get(key)
        return number(key, default if value is None else value)

    def numbers(self, key: str, count: int) -> Floats:
        """Return a list of `count` numbers of the scaling type."""
        values = self.scaling.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise RopeConfigError(key, values, f"a list of {count} numbers")
        return np.array(values, np.float64)

    def original_window(self) -> float:
        """Return the number of positions before scaling."""
        return self.number("original_max_position_embeddings", self.window)

    def factor(self) -> float:
        """Return s, or the ratio of the two windows where the config leaves s out."""
        if self.scaling.get("factor") is None and self.window is not None:
            return self.window / self.original_window()
        return self.number("factor")

    def attention_factor(self, formula: Callable[[RopeSettings], float]) -> float:
        """Return what the config gives as attention factor, else what `formula` makes of its other numbers."""
        return formula(self) if self.scaling.get("attention_factor") is None else self.number("attention_factor")


def rope_settings(scope: Scope, kind: str | None = None) -> RopeSettings:
    """Return the settings of a layer of this kind ("full_attention", "sliding_attention", …; None: not known).

    The config gives them in `rope_parameters`, one mapping or one per kind of layer, or in older keys.

    >>> rope_settings(Scope(None, {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, {})).kind
    'linear'
    """
    own = _of_kind(scope.config.get("rope_parameters"), kind)
    usual = _of_kind(scope.defaults.get("rope_parameters"), kind)
    if own is None:
        own = _older(scope, kind)
    if not any(key in own for key in ("rope_type", "type", "factor")):
        # The config says nothing about scaling, so that of its model type holds.
        own = {**{key: value for key, value in (usual or {}).items() if key not in (BASES[0], SHARES[0])}, **own}
    scaling_type = own.get("rope_type") or own.get("type") or "default"
    if scaling_type == "yarn" and "short_factor" in own:  # the first configs of Phi-3
        scaling_type = "longrope"
    base = _first(own, scope, usual, BASES, 10000.0)
    share = _first(own, scope, usual, SHARES, 1.0)
    window = next((value for key in WINDOWS if is_whole(value := scope.get(key), lowest=1)), None)
    original = scope.get("original_max_position_embeddings")  # where it stands here, it comes first
    scaling = {**own, "original_max_position_embeddings": original} if original is not None else own
    return RopeSettings(base, _SYNONYMS.get(scaling_type, scaling_type), share, window, scaling)


def named_in(scope: Scope, names: Sequence[str]) -> str:
    """Return which of the names of one setting the config uses, the present one if none."""
    return next((name for name in names if name in scope.config), names[0])


def number(key: str, value: Any) -> float:
    """Return `value` as a float; RopeConfigError, which names `key`, where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RopeConfigError(key, value, "a number") from None


def _nested(parameters: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in parameters.values())


def _of_kind(parameters: Mapping[str, Any] | None, kind: str | None) -> dict[str, Any] | None:
    """Return the `rope_parameters` of layers of one kind; None where there are none at all."""
    if parameters is None or parameters == {}:
        return None
    if not _nested(parameters):
        return dict(parameters)
    chosen = parameters.get(kind) if kind is not None else None
    if not isinstance(chosen, Mapping):
        raise RopeConfigError("rope_parameters", list(parameters), f"an entry for layers of kind {kind}")
    return {**{name: value for name, value in parameters.items() if not isinstance(value, Mapping)}, **chosen}


def _older(scope: Scope, kind: str | None) -> dict[str, Any]:
    """Return the parameters that a config without `rope_parameters` gives."""
    older = {**scope.defaults.get("rope_scaling", {}), **(scope.config.get("rope_scaling") or {})}
    if _differs_by_kind(scope):
        if kind != "full_attention":
            older = {}  # only layers that attend to everything are scaled
        for key in _BASES_BY_KIND.get(str(kind), ()):
            if scope.config.get(key) is not None:
                older.setdefault("rope_theta", scope.config[key])
        older.setdefault("rope_type", "default")
    return older


def _first(
    own: Mapping[str, Any], scope: Scope, usual: Mapping[str, Any] | None, keys: tuple[str, ...], default: float
) -> float:
    """Return the number under the first of `keys`: in the layer's parameters, in the config, in its type's defaults."""
    places = [own, {} if _differs_by_kind(scope) else scope.config, usual or {}, scope.defaults]
    for place in places:
        for key in keys:
            if place.get(key) is not None:
                return number(key, place[key])
    return default


def _differs_by_kind(scope: Scope) -> bool:
    """Return whether layers of different kinds of this model type have parameters of their own."""
    usual = scope.defaults.get("rope_parameters")
    return isinstance(usual, Mapping) and _nested(usual)


NOPE = "nope"  # a layer that the config excepts from rotation
KINDS = ("layer_types", "layers_block_type")
# Names in files that older versions of transformers wrote, which it still reads.
_RENAMED = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def layer_kind(scope: Scope, index: int) -> str | None:
    """Return the kind of the layer with this number in its path; None where the config does not tell kinds apart.

    >>> layer_kind(Scope(None, {"sliding_window_pattern": 3}, {"layer_types": ["full_attention"]}), 2)
    'full_attention'
    >>> layer_kind(Scope(None, {"layer_types": ["mamba", "attention"]}, {}), 1)  # as older versions spelled it
    'full_attention'
    """
    rotating = _entry(scope, "no_rope_layers", index)
    if rotating is None and _count(scope, "no_rope_layer_interval") is not None:
        rotating = (index + 1) % (_count(scope, "no_rope_layer_interval") or 1) != 0
    if rotating is not None and not rotating:
        return NOPE
    for key in KINDS:
        own = scope.config.get(key)
        if isinstance(own, (list, tuple)) and own:
            return _RENAMED.get(str(own[index]), str(own[index])) if index < len(own) else None
    usual = next((value for key in KINDS if (value := scope.defaults.get(key))), None)
    if usual is None:
        return None
    if (period := _count(scope, "sliding_window_pattern")) is not None:
        first = 0 if scope.defaults.get("dense_first") else 1
        return "sliding_attention" if (index + first) % period else "full_attention"
    if (period := _count(scope, "global_attn_every_n_layers")) is not None:
        return "sliding_attention" if index % period else "full_attention"
    return str(usual[index % len(usual)])  # the defaults of a model type hold one period


def is_usual_kind(scope: Scope, kind: str | None) -> bool:
    """Return whether a model with the default config of its type has layers of this kind, or of no kind."""
    usual = [scope.defaults[key] for key in KINDS if key in scope.defaults]
    return kind is None or (kind != NOPE and (not usual or kind in usual[0]))


def _entry(scope: Scope, key: str, index: int) -> Any:
    own, usual = scope.config.get(key), scope.defaults.get(key)
    if isinstance(own, (list, tuple)) and own:
        return own[index] if index < len(own) else None
    interval = scope.config.get("no_rope_layer_interval") is not None
    return usual[index % len(usual)] if isinstance(usual, list) and usual and not interval else None


def _count(scope: Scope, key: str) -> int | None:
    value = scope.config.get(key)
    return value if is_whole(value, lowest=1) else None


def frequencies(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    """Return θ [n] of the pairs that `size` dimensions form, and the attention factor.

    >>> frequencies(RopeSettings(base=100.0), 4)
    (array([1. , 0.1]), 1.0)
    """
    formula = _FORMULAS.get(settings.kind)
    if formula is None:
        raise RopeConfigError("rope_type", settings.kind, f"one of {', '.join(_FORMULAS)}")
    return formula(settings, size)


def _plain(base: float, size: int) -> Floats:
    return base ** -(np.arange(0, size, 2) / size)


def _default(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size), 1.0


def _linear(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size) / settings.number("factor"), 1.0


def _proportional(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    """Return θ of all pairs of a head of this size; the last ones are 0."""
    theta = _plain(settings.base, size)
    theta[int(settings.share * size // 2) :] = 0.0
    return theta / settings.number("factor", 1.0), 1.0


def _llama3(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    theta = _plain(settings.base, size)
    scale, low, high = (settings.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = theta * settings.original_window() / (2 * math.pi)  # turns of each pair within the original window
    kept = (turns - low) / (high - low)  # share of θ that is not divided
    mixed = kept * theta + (1 - kept) * theta / scale
    return np.where(turns < low, theta / scale, np.where(turns > high, theta, mixed)), 1.0


def _yarn(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    theta = _plain(settings.base, size)
    scale = settings.factor()
    # The pair that turns k times within the original window has b^(2f/m) = window / 2πk.
    first, last = (
        size * math.log(settings.original_window() / (2 * math.pi * turns)) / (2 * math.log(settings.base))
        for turns in (settings.number("beta_fast", 32.0), settings.number("beta_slow", 1.0))
    )
    if settings.scaling.get("truncate") in (None, True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    divided = np.clip((np.arange(size // 2) - first) / (last - first or 1e-3), 0, 1)  # 0: θ, 1: θ / s
    return theta * (1 - divided) + theta / scale * divided, settings.attention_factor(_yarn_attention)


def _yarn_attention(settings: RopeSettings) -> float:
    scale = settings.factor()

    def magnitude(weight: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    weights = [settings.number(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    return magnitude(weights[0]) / magnitude(weights[1]) if all(weights) else magnitude(1.0)


def _longrope(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    divisors = settings.numbers("short_factor", size // 2)  # within the original window
    return _plain(settings.base, size) / divisors, settings.attention_factor(_longrope_attention)


def _divided(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size) / settings.numbers("divisors", size // 2), 1.0


def _longrope_attention(settings: RopeSettings) -> float:
    scale = settings.factor()
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(settings.original_window()))


_FORMULAS: dict[str, Callable[[RopeSettings, int], tuple[Floats, float]]] = {
    "default": _default,
    "axial": _default,  # the pairs of one axis
    "linear": _linear,
    "dynamic": _default,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "divided": _divided,
}


def on_two_axes(
    layout: str, settings: RopeSettings, size: int, first: int, make: Callable[..., RotaryPairs]
) -> RotaryPairs:
    """Return the pairs that `size` dimensions form, from dimension `first` on; `make` pairs halves or neighbours.

    >>> pairs = on_two_axes("blocks", RopeSettings(base=100.0), 8, 0, RotaryPairs.halves)
    >>> pairs.frequencies.tolist(), pairs.axes.tolist()
    ([1.0, 0.1, 1.0, 0.1], [0, 0, 1, 1])
    """
    half = size // 4  # pairs of one axis
    theta, factor = frequencies(settings, size if layout == "split" else size // 2)
    pairs = make(np.arange(2 * half), first).pairs  # [n, 2]
    axes = np.repeat([0, 1], half)
    if layout == "split":
        theta = np.concatenate([theta[0::2], theta[1::2]])
    elif layout == "interleaved":
        theta, axes = np.repeat(theta, 2), np.tile([0, 1], half)
    else:
        theta = np.tile(theta, 2)
    if layout == "separate":
        pairs = np.concatenate([make(np.arange(half), first + at).pairs for at in (0, size // 2)])
    return RotaryPairs(pairs, theta, factor, None, axes)


# Config switches that turn rotation on or off, or change the pairs. The rules were found with their default values.
SWITCHES = (
    "alibi",
    "position_embedding_type",
    "position_embeddings_type",
    "rope_interleave",
    "rotary",
    "use_rotary_embedding",
    "use_rope",
    "use_mem_rope",
    "nope_layer_interval",
)

Rule = Mapping[str, Any]


def with_rotary(layers: Sequence[Layer], ref: str) -> list[Layer]:
    """Return the layers with what rotates in their heads; one warning for a config that contradicts itself.

    ref: the name of the checkpoint, for the warning
    """
    found: list[Layer] = []
    problems: list[str] = []
    for layer in layers:
        rotary, known = None, False
        if layer.heads is not None:
            try:
                rotary, known = find_rotary(layer, layer.heads.size)
            except AttngeoError as error:
                problems.append(str(error))
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                problems.append(f"config.json: its rotary settings cannot be used ({first_line(error)})")
        found.append(replace(layer, rotary=rotary, rotary_known=known))
    if problems:
        warnings.warn(f"{ref}: {problems[0]}; scores under rotary embedding are left out", UserWarning, stacklevel=2)
    return found


def find_rotary(layer: Layer, size: int) -> tuple[RotaryPairs | None, bool]:
    """Return what rotates in the heads of `layer`, and whether that is known; (None, True): nothing rotates.

    size: dimensions of a head
    Raises RopeConfigError where the config contradicts itself.
    """
    scope = layer.scope
    if scope is None:
        return None, False
    index = layer.indices[-1] if layer.indices else 0
    kind = layer_kind(scope, index) if layer.indices else None
    rule = _rule_for(layer, scope, kind)
    if rule is None or rule["pairs"] == "unknown":
        return None, False
    if rule["pairs"] == "none":
        return None, True
    settings = rope_settings(scope, kind)
    if not _shown_to_read(rule, settings, scope, kind) or _differs_by_layer(scope, index, settings):
        return None, False
    return make_pairs(rule, settings, scope, size), True


def make_pairs(rule: Rule, settings: RopeSettings, scope: Scope, size: int) -> RotaryPairs:
    """Return the rotary pairs of a head of this size by one rule."""
    turning = rotary_size(rule, settings, scope, size)
    axes = rule.get("axes")
    smallest = 2 if axes is None else 4
    if turning % smallest or not 0 <= turning <= size:
        key = {"head": "head_dim", "share": named_in(scope, SHARES)}.get(rule["size"], str(rule["size"]))
        value = settings.share if rule["size"] == "share" else turning
        raise RopeConfigError(key, value, f"a multiple of {smallest} rotating dimensions, not {turning} of {size}")
    first = size - turning if rule["at"] == "end" else 0
    make = RotaryPairs.halves if rule["pairs"] == "halves" else RotaryPairs.neighbours
    window = settings.window
    if settings.kind == "longrope" and "original_max_position_embeddings" in settings.scaling:
        window = int(settings.original_window())  # beyond it, the frequencies are others
    if axes is None:
        theta, factor = frequencies(settings, turning)
        return make(-theta if rule.get("back") else theta, first, factor, window)
    return on_two_axes(axes, settings, turning, first, make)


def rotary_size(rule: Rule, settings: RopeSettings, scope: Scope, size: int) -> int:
    """Return how many dimensions of a head rotate."""
    if rule["size"] == "head" or settings.kind == "proportional":
        return size
    if rule["size"] == "share":
        return int(settings.share * size)
    return int(scope.get(rule["size"], size))  # GPT-J and GGUF: without a number all dimensions rotate


def _rule_for(layer: Layer, scope: Scope, kind: str | None) -> Rule | None:
    """Return the rule for a layer of this kind, under the switches of its config; None: none was found."""
    switched = scope.switched(SWITCHES)
    # Of a part of a larger model that has a model type of its own, the rules of that type hold too.
    part: Family = family(str(scope.config.get("model_type", "")))
    # Longer endings first: "encoder.layers.*.self_attn" is also the ending of a vision stack inside that encoder.
    for rules in (layer.facts.rotary, part.rotary):
        for rule in sorted(rules, key=lambda rule: -len(rule["site"])):
            if (
                ends_with(layer.template, rule["site"])
                and (rule["kind"] == kind if "kind" in rule else is_usual_kind(scope, kind))
                and rule.get("when", {}) == switched
            ):
                return rule
    return None


def _differs_by_layer(scope: Scope, index: int, settings: RopeSettings) -> bool:
    """Return whether the config gives this layer other settings than its kind has, which no rule describes."""
    bases, scaled = scope.config.get("layer_rope_theta"), scope.config.get("rope_scaling_layers")
    if isinstance(bases, list) and (index >= len(bases) or bases[index] != settings.base):
        return True
    local = scope.config.get("swa_rope_theta")  # of layers with a window, which are no kind of their own in this type
    if local not in (None, settings.base) and not _differs_by_kind(scope):
        return True
    return isinstance(scaled, list) and index not in scaled and settings.kind != "default"


def _shown_to_read(rule: Rule, settings: RopeSettings, scope: Scope, kind: str | None) -> bool:
    """Return whether the model type follows those settings that differ from its defaults, as far as was shown."""
    usual = rope_settings(Scope(scope.name, {}, scope.defaults), kind)
    reads = rule.get("reads", ())
    return (
        (settings.base == usual.base or "base" in reads)
        and (settings.share == usual.share or rule["size"] not in ("head", "share") or "share" in reads)
        and (settings.kind in (usual.kind, "default", "dynamic", *reads) or "scaling" in reads)
    )
