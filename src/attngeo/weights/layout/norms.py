"""Find the norm whose output enters an attention layer, where the live proof has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.weights.layout.attention_weights import Norm
from attngeo.weights.layout.families import Family, ends_with
from attngeo.weights.layout.sites import Shapes, Site, numberless, query_width
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest


@dataclass(frozen=True)
class NormPlace:
    """A norm's gain in the checkpoint."""

    tensor: str
    centred: bool
    offset: bool  # gain = 1 + weight


# Switches that move the norm before or behind the attention: a rule seen live holds for the default only.
SWITCHES = (
    "do_layer_norm_before",
    "do_stable_layer_norm",
    "normalize_before",
    "pre_norm",
    "prenorm",
    "post_norm",
    "apply_residual_connection_post_layernorm",
    "encoder_normalize_before",
    "use_pre_norm",
)


def find_norm(site: Site, shapes: Shapes, config: Mapping[str, Any] | None, known: Family) -> NormPlace | None:
    """The norm before `site`: in its own block, or the last of the block before it (for the first, the embedding's)."""
    if config is None or site.cross:
        return None
    scope = site.scope.config if site.scope is not None else config
    defaults = site.scope.defaults if site.scope is not None else {}
    if any(key in scope and key in defaults and scope[key] != defaults[key] for key in SWITCHES):
        return None
    for rule in known.norms:
        path = norm_path(site.path, rule)
        if path is None:
            continue
        # old checkpoints call a gain gamma
        found = [name for name in shapes if any(ends_with(name, f"{path}.{leaf}") for leaf in ("weight", "gamma"))]
        if len(found) == 1 and shapes[found[0]] == (query_width(site, shapes),):
            return NormPlace(found[0], bool(rule["centred"]), bool(rule["offset"]))
    return None


def norm_path(site: str, rule: Mapping[str, Any]) -> str | None:
    """Where `rule` puts the norm of the attention at path `site`; None where the rule is for others.

    rule["site"]  the end of the attention's template, as in "encoder.layer.*.attention.self"
    rule["norm"]  the norm's path within the block ("block", "previous") or its own last words ("first")
    """
    words, template = site.split("."), numberless(site)
    if "*" not in template or not ends_with(template, str(rule["site"])):
        return None
    last = max(i for i, word in enumerate(words) if word.isdigit())
    block, number = words[: last + 1], int(words[last])
    if rule["at"] == "block":
        return ".".join([*block, rule["norm"]])
    if rule["at"] == "previous" and number > 0:
        return ".".join([*block[:-1], str(number - 1), rule["norm"]])
    if rule["at"] == "first" and number == 0:
        return str(rule["norm"])
    return None


def read_norm(checkpoint: Checkpoint, place: NormPlace) -> Norm:
    gain = checkpoint.read(ReadRequest(place.tensor))
    return Norm(gain + 1 if place.offset else gain, place.centred)
