"""From the facts about a model type and the config of a layer to the rotary pairs of its heads.

A rule is a mapping that `tools/proof` found on a live model:

    site     the end of the attention's template, such as "layers.*.self_attn"
    kind     the kind of the layers it holds for; left out: all layers
    when     values of config switches under which it was found; left out: their default values
    pairs    "none" (nothing rotates), "halves" (i and i + n), "neighbours" (2i and 2i + 1) or "unknown" (not proved)
    size     how many dimensions rotate: "head" (all), "share" (the config gives a share), or the config key that counts
             them
    at       "start" or "end" of the head; where the rotating dimensions are
    back     true: pairs rotate the other way, by −Δθ
    axes     how the pairs follow the row and the column of an image patch, see `axes`; left out: one axis
    reads    what the live model was shown to read from its config: "base", "share", "scaling" or one scaling type
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.arguments import is_whole
from attngeo.errors import AttngeoError
from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.layout.families import Family, ends_with, family
from attngeo.weights.layout.rope.axes import on_two_axes
from attngeo.weights.layout.rope.frequencies import frequencies
from attngeo.weights.layout.rope.layer_kinds import is_usual_kind, layer_kind
from attngeo.weights.layout.rope.settings import SHARES, RopeConfigError, RopeSettings, named_in, rope_settings
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.layout.site import Location, Site

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


def rotary_of_sites(sites: Sequence[Site], facts: Sequence[Family], ref: str) -> list[tuple[RotaryPairs | None, bool]]:
    """Return what rotates in the heads of each site, and whether that is known; one warning for a wrong config.

    facts: about the part of the model that each site belongs to
    ref:   the name of the checkpoint, for the warning
    """
    found: list[tuple[RotaryPairs | None, bool]] = []
    problems: list[str] = []
    for site, known in zip(sites, facts, strict=True):
        try:
            found.append((None, False) if site.heads is None else find_rotary(site, site.heads.size, known))
        except AttngeoError as error:
            problems.append(str(error))
            found.append((None, False))
    if problems:
        warnings.warn(f"{ref}: {problems[0]}; scores under rotary embedding are left out", UserWarning, stacklevel=2)
    return found


def find_rotary(site: Location, size: int, known: Family) -> tuple[RotaryPairs | None, bool]:
    """Return what rotates in the heads of `site`, and whether that is known; (None, True): nothing rotates.

    size: dimensions of a head
    Raises RopeConfigError where the config contradicts itself.
    """
    if site.scope is None:
        return None, False
    index = site.indices[-1] if site.indices else 0
    kind = layer_kind(site.scope, index) if site.indices else None
    rule = _rule_for(site, kind, known)
    if rule is None or rule["pairs"] == "unknown":
        return None, False
    if rule["pairs"] == "none":
        return None, True
    settings = rope_settings(site.scope, kind)
    if not _shown_to_read(rule, settings, site.scope, kind) or _differs_by_layer(site.scope, index, settings):
        return None, False
    return make_pairs(rule, settings, site.scope, size), True


def make_pairs(rule: Rule, settings: RopeSettings, scope: Scope, size: int) -> RotaryPairs:
    """Return the rotary pairs of a head of this size by one rule."""
    turning = rotary_size(rule, settings, scope, size)
    axes = rule.get("axes")
    smallest = 2 if axes is None else 4
    if turning % smallest:
        value = settings.share if rule["size"] == "share" else turning
        expected = f"a multiple of {smallest} rotating dimensions, not {turning} of {size}"
        raise RopeConfigError(_size_key(rule, scope), value, expected)
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
    value = scope.get(rule["size"])
    if value is None:  # GPT-J and GGUF: without a number all dimensions rotate
        return size
    if not is_whole(value, 0, size):
        raise RopeConfigError(str(rule["size"]), value, f"a whole number from 0 to {size}")
    return value


def _size_key(rule: Rule, scope: Scope) -> str:
    return {"head": "head_dim", "share": named_in(scope, SHARES)}.get(rule["size"], str(rule["size"]))


def _rule_for(site: Location, kind: str | None, known: Family) -> Rule | None:
    """Return the rule for a layer of this kind, under the switches of its config; None: none was found."""
    assert site.scope is not None
    switched = {key: value for key in SWITCHES if (value := _other_value(site.scope, key)) is not None}
    # Of a part of a larger model that has a model type of its own, the rules of that type hold too.
    part = family(str(site.scope.config.get("model_type", "")))
    # Longer endings first: "encoder.layers.*.self_attn" is also the ending of a vision stack inside that encoder.
    for rule in (rule for rules in (known.rotary, part.rotary) for rule in sorted(rules, key=_by_length)):
        if (
            ends_with(site.template, str(rule["site"]))
            and (rule["kind"] == kind if "kind" in rule else is_usual_kind(site.scope, kind))
            and rule.get("when", {}) == switched
        ):
            return rule
    return None


def _by_length(rule: Rule) -> int:
    return -len(str(rule["site"]))


def _other_value(scope: Scope, key: str) -> Any:
    """Return the value of a switch that the model type reads where it differs from its default, None otherwise."""
    value = scope.config.get(key)
    return None if key not in scope.defaults or value == scope.defaults[key] else value


def _differs_by_layer(scope: Scope, index: int, settings: RopeSettings) -> bool:
    """Return whether the config gives this layer other settings than its kind has, which no rule describes."""
    bases, scaled = scope.config.get("layer_rope_theta"), scope.config.get("rope_scaling_layers")
    if isinstance(bases, list) and (index >= len(bases) or bases[index] != settings.base):
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
