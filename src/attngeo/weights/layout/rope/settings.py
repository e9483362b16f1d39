"""`RopeSettings`: what a config says about the rotary embedding of one layer, in the spelling of any year."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attngeo.arguments import is_whole
from attngeo.arrays import Floats
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import Scope

# Names of one setting at the top level of a config, the present one first.
BASES = ("rope_theta", "rotary_emb_base", "rotary_embedding_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", "rope_pct")
SIZES = ("rotary_dim", "rotary_ndims", "qk_rope_head_dim")
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
        super().__init__(f"config.json: {key} is {_shown(value)}, expected {expected}")


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

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise RopeConfigError(key, value, "a positive number")
        return value

    def numbers(self, key: str, count: int) -> Floats:
        """Return a list of `count` positive numbers of the scaling type."""
        values = self.scaling.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise RopeConfigError(key, values, f"a list of {count} numbers")
        array = np.array([number(key, value) for value in values])
        if (array <= 0).any():
            raise RopeConfigError(key, values, "positive numbers")
        return array

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.scaling.get(key)
        return default if value is None else bool(value)

    def original_window(self) -> float:
        """Return the number of positions before scaling."""
        value = self.positive("original_max_position_embeddings", self.window)
        if value <= 1:
            raise RopeConfigError("original_max_position_embeddings", value, "more than one position")
        return value

    def factor(self) -> float:
        """Return s, or the ratio of the two windows where the config leaves s out."""
        if self.scaling.get("factor") is None and self.window is not None:
            return self.window / self.original_window()
        return self.positive("factor")

    def attention_factor(self, formula: Callable[[RopeSettings], float]) -> float:
        """Return what the config gives as attention factor, else what `formula` makes of its other numbers."""
        return formula(self) if self.scaling.get("attention_factor") is None else self.positive("attention_factor")


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
    if not isinstance(scaling_type, str):
        raise RopeConfigError("rope_type", scaling_type, "a name")
    if scaling_type == "yarn" and "short_factor" in own:  # the first configs of Phi-3
        scaling_type = "longrope"
    base = _first(own, scope, usual, BASES, 10000.0)
    share = _first(own, scope, usual, SHARES, 1.0)
    if base <= 1:
        raise RopeConfigError(named_in(scope, BASES), base, "a number above 1")
    if not 0 <= share <= 1:
        raise RopeConfigError(named_in(scope, SHARES), share, "a share from 0 to 1")
    original = scope.get("original_max_position_embeddings")  # where it stands here, it comes first
    scaling = {**own, "original_max_position_embeddings": original} if original is not None else own
    return RopeSettings(base, _SYNONYMS.get(scaling_type, scaling_type), share, window(scope), scaling)


def named_in(scope: Scope, names: Sequence[str]) -> str:
    """Return which of the names of one setting the config uses, the present one if none."""
    return next((name for name in names if name in scope.config), names[0])


def window(scope: Scope) -> int | None:
    """Return the number of positions the model was made for; None where the config does not say."""
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "context_length", "seq_length"):
        value = scope.get(key)
        if is_whole(value, lowest=1):
            return value
    return None


def number(key: str, value: object) -> float:
    """Return `value` as a finite float; RopeConfigError, which names `key`, where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RopeConfigError(key, value, "a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise RopeConfigError(key, value, "a finite number")
    return result


def _nested(parameters: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in parameters.values())


def _of_kind(parameters: object, kind: str | None) -> dict[str, Any] | None:
    """Return the `rope_parameters` of layers of one kind; None where there are none at all."""
    if parameters is None or parameters == {}:
        return None
    if not isinstance(parameters, Mapping):
        raise RopeConfigError("rope_parameters", parameters, "a mapping")
    if not _nested(parameters):
        return dict(parameters)
    chosen = parameters.get(kind) if kind is not None else None
    if not isinstance(chosen, Mapping):
        raise RopeConfigError("rope_parameters", list(parameters), f"an entry for layers of kind {kind}")
    return {**{name: value for name, value in parameters.items() if not isinstance(value, Mapping)}, **chosen}


def _older(scope: Scope, kind: str | None) -> dict[str, Any]:
    """Return the parameters that a config without `rope_parameters` gives."""
    scaling = scope.config.get("rope_scaling")
    if scaling is not None and not isinstance(scaling, Mapping):
        raise RopeConfigError("rope_scaling", scaling, "a mapping")
    older = dict(scaling or {})
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


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
