"""Find the norm whose output an attention layer reads, by rules found on live models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngeo.weights.layout.families import ends_with
from attngeo.weights.layout.layer import Layer, StoredNorm, path_template
from attngeo.weights.layout.storage import Shapes

# Config switches that move the norm before or behind the attention, or make it a norm of another kind. The rules were
# found with their default values.
SWITCHES = (
    "do_layer_norm_before",
    "do_stable_layer_norm",
    "normalize_before",
    "pre_norm",
    "prenorm",
    "post_norm",
    "norm_after",
    "apply_residual_connection_post_layernorm",
    "encoder_normalize_before",
    "use_pre_norm",
    "norm_type",
    "normalization_type",
)


def find_norm(layer: Layer, shapes: Shapes) -> StoredNorm | None:
    """Return the norm before `layer`, None where it is not known.

    It lies in the layer's own block, or it is the last norm of the block before (for the first block: the norm of the
    embedding).
    """
    scope = layer.scope
    if scope is None or layer.cross:
        return None
    if any(key in scope.config and scope.config[key] != scope.defaults.get(key, scope.config[key]) for key in SWITCHES):
        return None
    for rule in layer.facts.norms:
        path = norm_path(layer.path, rule)
        if path is None:
            continue
        # Old checkpoints call a gain gamma.
        names = [name for name in shapes if any(ends_with(name, f"{path}.{leaf}") for leaf in ("weight", "gamma"))]
        if len(names) == 1 and shapes[names[0]] == layer.storage.widths(shapes)[:1]:
            return StoredNorm(names[0], bool(rule["centred"]), bool(rule["offset"]), rule["at"] == "block")
    return None


def norm_path(layer: str, rule: Mapping[str, Any]) -> str | None:
    """Return the path of the norm that `rule` assigns to the attention at path `layer`; None if it does not apply.

    rule["site"]: the end of the attention's template, such as "encoder.layer.*.attention.self"
    rule["at"]:   "block" (the norm is in the attention's own block), "previous" (in the block before it) or "first"
                  (elsewhere; for the first block only, the one whose numbers are all 0)
    rule["norm"]: the norm's path within its block; for "first" the last words of its path

    >>> norm_path("layers.3.self_attn", {"site": "layers.*.self_attn", "at": "block", "norm": "input_layernorm"})
    'layers.3.input_layernorm'
    """
    words, template = layer.split("."), path_template(layer)
    numbers = [i for i, word in enumerate(words) if word.isdecimal()]
    if not numbers or not ends_with(template, str(rule["site"])):
        return None
    block, number = words[: numbers[-1] + 1], int(words[numbers[-1]])
    if rule["at"] == "block":
        return ".".join([*block, rule["norm"]])
    if rule["at"] == "previous" and number > 0:
        return ".".join([*block[:-1], str(number - 1), rule["norm"]])
    if rule["at"] == "first" and not any(int(words[i]) for i in numbers):
        return str(rule["norm"])
    return None
