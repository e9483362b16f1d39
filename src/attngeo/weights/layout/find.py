"""What the names of tensors say about attention: the layers of a model, the norms before them, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.io.names import first_names
from attngeo.weights.layout.diffusers import is_cross
from attngeo.weights.layout.facts import Family, Scope, ends_with, family, scope_of
from attngeo.weights.layout.layer import Layer, QKNorms, StoredNorm, join_path, path_template
from attngeo.weights.layout.storage import Separate, Shapes, Storage
from attngeo.weights.layout.table import (
    CROSS,
    FROM_SECOND,
    NOT_ATTENTION,
    QK_GAINS,
    STORAGES,
    TABLE,
    TO_SECOND,
    Layout,
)

_QK_NORM = re.compile(r"(.*)\.(?:q|k|query|key)_?(?:layer_?)?norm\b.*weight$")
# A low-rank adapter beside the weight that it changes: "q_proj.lora_A", or Zamba2's "linear_q_adapter_list.0".
_ADAPTER = re.compile(
    r"(.*)\.(?:linear_)?(?:(?:w|to_)?[qk]|qkv|query|key|query_key_value|in|c_attn)(?:_proj|_lin)?[._](?:lora|adapter)"
)
_ATTENTION_WORDS = re.compile(r"att|query|qkv|q_proj|\bq\b", re.IGNORECASE)


def find_layers(shapes: Shapes, config: Mapping[str, Any] | None) -> list[Layer]:
    """Return every attention layer that the table knows, sorted by path; stacks are not named and heads not counted."""
    by_leaf: dict[str, list[str]] = {}  # the last one, two or three words of a name → names
    qk_norms: dict[str, list[str]] = {}  # path → names of norm gains on its queries and keys
    adapters: dict[str, str] = {}  # path → name of a part of an adapter of its queries or keys
    for name in shapes:
        words = name.split(".")
        for count in (1, 2, 3):
            by_leaf.setdefault(".".join(words[-count:]), []).append(name)
        if match := _QK_NORM.match(name):
            qk_norms.setdefault(match[1], []).append(name)
        if match := _ADAPTER.match(name):
            adapters.setdefault(match[1], name)
    found: dict[str, Layer | None] = {}  # by path; None: linear attention
    for row in TABLE:
        if row.diffusers and "_class_name" not in (config or {}):
            continue
        for name in by_leaf.get(row.query, ()):
            path = name[: -len(row.query)].rstrip(".")
            own_path = join_path(path, row.suffix)
            complete = all(join_path(path, leaf) in shapes for leaf in (row.key, *row.others.values()))
            if own_path in found or not complete or NOT_ATTENTION.search(path):
                continue
            scope = None if config is None else scope_of(config, path)
            kind, transposed = _storage(row, scope, config)
            if kind is Storage:  # nobody knows how the heads lie in these tensors
                continue
            gains = _qk_gains(path, row, shapes, qk_norms.get(path, ()))
            if kind is None:
                found[own_path] = None
                continue
            others = {role: join_path(path, leaf) for role, leaf in row.others.items()}
            storage = kind(join_path(path, row.query), join_path(path, row.key), others, transposed)
            found[own_path] = _layer(own_path, row, storage, gains, scope, shapes)
    for path in found:
        if path in adapters:
            raise LayoutError(
                f"{adapters[path]}: an adapter changes the queries or keys, so the form is not that of the weights "
                "alone; merge it into them first"
            )
    attention = [layer for layer in found.values() if layer is not None]
    return sorted(attention, key=lambda layer: (layer.template, layer.indices))


def unknown_layer(path: str, config: Mapping[str, Any]) -> Layer:
    """Return the attention layer at `path` of a live model, of which no row of the table knows the tensors."""
    return Layer(path=path, cross=bool(CROSS.search(path)), scope=scope_of(config, path))


def attention_like(names: Iterable[str]) -> list[str]:
    """Return the names that look like attention weights, for the message when no layout fits."""
    return [name for name in names if _ATTENTION_WORDS.search(name) and not name.endswith("bias")]


def _storage(row: Layout, scope: Scope | None, config: Mapping[str, Any] | None) -> tuple[type[Storage] | None, bool]:
    """Return the storage class of a row, and whether tensors are [in, out]; what the facts name comes first.

    They are facts about the part of the model, or about the whole.
    """
    if scope is not None and config is not None:
        for model_type in (str(one.get("model_type", "")) for one in (scope, config)):
            if (named := family(model_type).storage.get(row.query)) is not None:
                return STORAGES[named]
    return row.storage, False


def _layer(
    path: str, row: Layout, storage: Storage, gains: tuple[str | None, str | None], scope: Scope | None, shapes: Shapes
) -> Layer:
    """Return the layer at `path`, whose tensors fit `row`."""
    cross = is_cross(path, scope) if scope is not None and "_class_name" in scope.config else None
    # Queries and keys that read vectors of two widths read two sequences.
    two_widths = isinstance(storage, Separate) and shapes[storage.query][1:2] != shapes[storage.key][1:2]
    # LayerNorms, by the model type or by a bias beside a gain, which RMSNorm lacks.
    biases = (f"{name.removesuffix('.weight')}.bias" for name in gains if name is not None)
    facts = Family() if scope is None else scope.facts
    centred = facts.centred or any(bias in shapes for bias in biases)
    return Layer(
        path=path,
        cross=two_widths or (bool(CROSS.search(path)) if cross is None else cross),
        scope=scope,
        row=row,
        storage=storage,
        qk_norms=QKNorms(gains, facts.offset, centred, facts.gainless),
    )


def _qk_gains(path: str, row: Layout, shapes: Shapes, norms: Iterable[str]) -> tuple[str | None, str | None]:
    """Return the names of the QK-norm gains of queries and keys, None where there are none.

    LayoutError where a gain in `norms`, all norms of queries and keys below `path`, is not among them.
    """
    gains: tuple[str | None, str | None] = None, None
    for leaves in QK_GAINS if row.gains is None else (row.gains,):
        query, key = (name if (name := join_path(path, leaf)) in shapes else None for leaf in leaves)
        if query is not None or key is not None:
            gains = query, key
            break
    for name in norms:
        if name not in gains:
            raise LayoutError(f"{name}: a norm on queries or keys stored in an unknown way, so the form is not known")
    return gains


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
    if layer.scope is None or layer.cross or layer.scope.switched(SWITCHES):
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


_SHOWN = 4  # paths in a note
# Names of modules that project queries: "q_proj", "to_q", "wqkv", "query_key_value", "wq_du", "sa_qcontent_proj"; not
# "query_embed" or "query_feat", which hold learned queries.
_QUERIES = re.compile(r"(?:^|_)w?q(?:kv|content)?(?:_|$)|^query(?!.*(?:embed|feat))(?:_|$)", re.IGNORECASE)
# Parts of a model that predict further tokens: "mtp.layers.0", "model.mtp_layers.0", ERNIE 4.5's "model.mtp_block.0".
_FURTHER_TOKENS = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")

Incomplete: TypeAlias = list[tuple[Layer, list[str]]]  # layers, and the tensors that each lacks


def is_unused(layer: Layer) -> bool:
    """Return whether the checkpoint holds key weights of a layer that the model does not run with them.

    In Gemma 3n and Gemma 4 the last layers read the keys of an earlier one. Layers that predict further tokens while
    the model is trained (multi-token prediction) are stored behind the last layer by DeepSeek-V3 and GLM-4.5, and under
    names of their own by Qwen 3.5, EXAONE 4.5, Nemotron-H and others.
    """
    if layer.scope is None or not layer.indices:  # a model of the reader's own, which may run all of its layers
        return False
    if _FURTHER_TOKENS.search(layer.path) or _reads_other_keys(layer):
        return True
    depth, further = (_count(layer, key) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    return further > 0 and layer.indices[-1] >= depth > 0


def left_out(
    shapes: Shapes, scored: Sequence[Layer], skipped: Sequence[Layer], unused: Sequence[Layer], ref: str, *, whole: bool
) -> tuple[str, ...]:
    """Return one remark per reason for which layers are left out; none where all layers are scored.

    scored:  the layers that are scored; LayoutError where a layer of their stacks lacks tensors
    skipped: layers of a known layout that no live model of this type confirmed
    unused:  layers that the model does not run with these weights
    whole:   False: a user has selected the stacks of `scored`, and knows that they are a part of the model, but not
             that layers of these stacks are left out
    """
    layers = [*scored, *skipped, *unused] if whole else list(scored)
    incomplete = incomplete_layers(shapes, layers)
    templates = {layer.template for layer in scored}
    for layer, missing in incomplete:
        if layer.template in templates and not _reads_other_keys(layer):
            lacks = f"{layer.path} lacks {', '.join(missing)}"
            raise LayoutError(f"{ref}: {lacks}, which other layers of its stack have")
    reasons = {
        "they read the keys of another layer": [layer.path for layer, _ in incomplete if _reads_other_keys(layer)]
    }
    if whole:
        known = {layer.path for layer in layers} | {layer.path for layer, _ in incomplete}
        reasons |= {
            "no live model of this type confirmed them": [layer.template for layer in skipped],
            "the model does not run them with these weights": [layer.path for layer in unused],
            "their layout is unknown": unknown_layers(shapes, known),
        }
    return tuple(
        f"layers are left out, because {reason}: {first_names(list(dict.fromkeys(names)), _SHOWN)}"
        for reason, names in reasons.items()
        if names
    )


def incomplete_layers(shapes: Shapes, layers: Iterable[Layer]) -> Incomplete:
    """Return the layers that have queries or keys, but not all tensors of their stack, and what they lack.

    What a layer has to have is known from the other layers of its stack, `layers`. A layer with neither queries nor
    keys may be one without attention, such as those of hybrid models.
    """
    layers = list(layers)
    known = {layer.path for layer in layers}
    stacks: dict[tuple[str, str], tuple[Layer, Layout]] = {}  # (leaf of queries or keys, template) → one of the stack
    for layer in layers:
        # Forms between two streams are made of the tensors of two other layers.
        if layer.row is not None and layer.row.suffix not in (TO_SECOND, FROM_SECOND):
            for leaf in (layer.row.query, layer.row.key):
                stacks.setdefault((leaf, layer.template), (layer, layer.row))
    incomplete: Incomplete = []
    for name in shapes:
        for (leaf, template), (layer, row) in stacks.items():
            if not ends_with(name, leaf):
                continue
            start = name.removesuffix(leaf).rstrip(".")
            path = join_path(start, row.suffix)
            if path in known or path_template(path) != template:
                continue
            known.add(path)
            if _is_linear(start, leaf, shapes):
                continue
            leaves = (row.query, row.key, *row.others.values())
            if missing := [other for other in leaves if join_path(start, other) not in shapes]:
                incomplete.append((replace(layer, path=path), missing))
    return incomplete


def unknown_layers(shapes: Shapes, known: set[str]) -> list[str]:
    """Return the templates of query projections, by their names, that belong to no layer in `known`.

    >>> unknown_layers({"layers.0.q_proj.weight": (8, 8), "tower.1.wqkv.weight": (24, 8)}, {"layers.0"})
    ['tower.*.wqkv']
    """
    templates: dict[str, None] = {}
    for name, shape in shapes.items():
        path, _, leaf = name.rpartition(".")
        module, _, projection = path.rpartition(".")
        if leaf != "weight" or len(shape) != 2 or not _QUERIES.search(projection):
            continue
        if NOT_ATTENTION.search(path) or _is_linear(module, f"{projection}.weight", shapes) or _is_within(path, known):
            continue
        templates[path_template(path)] = None
    return list(templates)


def _reads_other_keys(layer: Layer) -> bool:
    """Return whether a layer is among the last ones, which share the keys of earlier layers."""
    depth, shared = (_count(layer, key) for key in ("num_hidden_layers", "num_kv_shared_layers"))
    return bool(layer.indices) and shared > 0 and layer.indices[-1] >= depth - shared > 0


def _count(layer: Layer, key: str) -> int:
    """Return a number of layers that the config declares; 0 where it declares none."""
    value = None if layer.scope is None else layer.scope.get(key)
    return int(value) if value is not None and is_whole(value, lowest=1) else 0


def _is_within(path: str, known: set[str]) -> bool:
    """Return whether one of the known layers is at `path` or around it."""
    words = path.split(".")
    return any(".".join(words[:count]) in known for count in range(len(words) + 1))


def _is_linear(module: str, leaf: str, shapes: Shapes) -> bool:
    """Return whether a module with queries at `leaf` is linear attention, which has no product of queries and keys."""
    return any(row.storage is None and row.query == leaf and join_path(module, row.key) in shapes for row in TABLE)
