"""Find the attention layers of a model by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import Scope, scope_of
from attngeo.weights.layout.diffusers import is_cross
from attngeo.weights.layout.families import Family, family
from attngeo.weights.layout.layer import Layer, QKNorms, join_path
from attngeo.weights.layout.storage import Separate, Shapes, Storage
from attngeo.weights.layout.table import CROSS, NOT_ATTENTION, QK_GAINS, STORAGES, TABLE, Layout

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
            if own_path in found or not _has_tensors(path, row, shapes):
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
            found[own_path] = _layer(own_path, row, storage, gains, scope, shapes, config)
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
    scope = scope_of(config, path)
    return Layer(path=path, cross=bool(CROSS.search(path)), scope=scope, facts=_facts(scope, config))


def attention_like(names: Iterable[str]) -> list[str]:
    """Return the names that look like attention weights, for the message when no layout fits."""
    return [name for name in names if _ATTENTION_WORDS.search(name) and not name.endswith("bias")]


def _has_tensors(path: str, row: Layout, shapes: Shapes) -> bool:
    """Return whether `path` has all tensors of `row` and may be attention."""
    leaves = (row.key, *row.others.values())
    return not NOT_ATTENTION.search(path) and all(join_path(path, leaf) in shapes for leaf in leaves)


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
    path: str,
    row: Layout,
    storage: Storage,
    gains: tuple[str | None, str | None],
    scope: Scope | None,
    shapes: Shapes,
    config: Mapping[str, Any] | None,
) -> Layer:
    """Return the layer at `path`, whose tensors fit `row`."""
    facts = _facts(scope, config)
    cross = is_cross(path, scope) if scope is not None and "_class_name" in scope.config else None
    # Queries and keys that read vectors of two widths read two sequences.
    two_widths = isinstance(storage, Separate) and shapes[storage.query][1:2] != shapes[storage.key][1:2]
    # LayerNorms, by the model type or by a bias beside a gain, which RMSNorm lacks.
    biases = (f"{name.removesuffix('.weight')}.bias" for name in gains if name is not None)
    centred = facts.centred or any(bias in shapes for bias in biases)
    return Layer(
        path=path,
        cross=two_widths or (bool(CROSS.search(path)) if cross is None else cross),
        scope=scope,
        facts=facts,
        row=row,
        storage=storage,
        qk_norms=QKNorms(gains, facts.offset, centred, facts.gainless),
    )


def _facts(scope: Scope | None, config: Mapping[str, Any] | None) -> Family:
    """Return the facts about the part of a model that a layer belongs to."""
    known = family(str((config or {}).get("model_type", "")))
    return known if scope is None else scope.facts(known)


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
