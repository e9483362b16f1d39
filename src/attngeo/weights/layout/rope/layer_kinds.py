"""The kind of a layer, for models in which not all layers rotate alike: "full_attention", "sliding_attention", …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngeo.arguments import is_whole
from attngeo.weights.layout.config_scope import Scope

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
        return "sliding_attention" if (index + 1) % period else "full_attention"
    if (period := _count(scope, "global_attn_every_n_layers")) is not None:
        return "sliding_attention" if index % period else "full_attention"
    return str(usual[index % len(usual)])  # the defaults of a model type hold one period


def is_usual_kind(scope: Scope, kind: str | None) -> bool:
    """Return whether a model with the default config of its type has layers of this kind, or of no kind."""
    usual = [scope.defaults[key] for key in KINDS if key in scope.defaults]
    return kind is None or (kind != NOPE and (not usual or kind in usual[0]))


def shortest_period(kinds: Sequence[Any]) -> list[Any]:
    """Return the shortest beginning of `kinds` that, repeated, gives all of them.

    >>> shortest_period(["a", "a", "b", "a", "a", "b", "a"])
    ['a', 'a', 'b']
    """
    for length in range(1, len(kinds)):
        if all(kind == kinds[i % length] for i, kind in enumerate(kinds)):
            return list(kinds[:length])
    return list(kinds)


def _entry(scope: Scope, key: str, index: int) -> Any:
    own, usual = scope.config.get(key), scope.defaults.get(key)
    if isinstance(own, (list, tuple)) and own:
        return own[index] if index < len(own) else None
    return usual[index % len(usual)] if isinstance(usual, list) and usual and not _interval_given(scope) else None


def _interval_given(scope: Scope) -> bool:
    return scope.config.get("no_rope_layer_interval") is not None


def _count(scope: Scope, key: str) -> int | None:
    value = scope.config.get(key)
    return value if is_whole(value, lowest=1) else None
