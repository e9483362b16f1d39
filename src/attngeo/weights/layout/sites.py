"""Find the attention layers of a checkpoint by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import scope_of
from attngeo.weights.layout.diffusers import DIFFUSERS_TABLE, is_cross
from attngeo.weights.layout.site import Site, join_path
from attngeo.weights.layout.storage.base import Shapes
from attngeo.weights.layout.table import CROSS, NOT_ATTENTION, QK_GAINS, TABLE, Layout

_QK_NORM = re.compile(r"(.*)\.(?:q|k|query|key)_?(?:layer_?)?norm\b.*weight$")
# A low-rank adapter beside the weight that it changes: "q_proj.lora_A", or Zamba2's "linear_q_adapter_list.0".
_ADAPTER = re.compile(
    r"(.*)\.(?:linear_)?(?:(?:w|to_)?[qk]|qkv|query|key|query_key_value|in|c_attn)(?:_proj|_lin)?[._](?:lora|adapter)"
)
_ATTENTION_WORDS = re.compile(r"att|query|qkv|q_proj|\bq\b", re.IGNORECASE)


def find_sites(shapes: Shapes, config: Mapping[str, Any] | None) -> list[Site]:
    """Return every attention layer that the table knows, sorted by path and number; heads are not counted yet."""
    model_type = str((config or {}).get("model_type", ""))
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
    sites: dict[str, Site | None] = {}  # by path; None: linear attention
    for layout in (*TABLE, *DIFFUSERS_TABLE):
        for name in by_leaf.get(layout.query, ()):
            path = name[: -len(layout.query)].rstrip(".")
            if layout.types is not None and not {model_type, _part_type(path, config)} & layout.types:
                continue
            own_path = join_path(path, layout.suffix)
            if own_path not in sites and _fits(path, layout, shapes, config):
                sites[own_path] = _site(path, own_path, layout, shapes, qk_norms.get(path, ()), config)
    attention = [site for site in sites.values() if site is not None]
    _check_no_adapters(sites, adapters)
    return sorted(attention, key=lambda site: (site.template, site.indices))


def attention_like(names: Iterable[str]) -> list[str]:
    """Return the names that look like attention weights, for the message when no layout fits."""
    return [name for name in names if _ATTENTION_WORDS.search(name) and not name.endswith("bias")]


def _part_type(path: str, config: Mapping[str, Any] | None) -> str:
    """Return the model type of the part of the model that `path` belongs to; "" without a config."""
    return "" if config is None else str(scope_of(config, path).config.get("model_type", ""))


def _fits(path: str, layout: Layout, shapes: Shapes, config: Mapping[str, Any] | None) -> bool:
    """Return whether `path` has all tensors of `layout` and the config meets the layout's condition."""
    leaves = (layout.key, *layout.others.values())
    if NOT_ATTENTION.search(path) or not all(join_path(path, leaf) in shapes for leaf in leaves):
        return False
    if layout.condition is None:
        return True
    expected = not layout.condition.startswith("!")
    key = layout.condition.lstrip("!")
    return config is not None and bool(scope_of(config, path).get(key, False)) == expected


def _site(
    path: str,
    own_path: str,
    layout: Layout,
    shapes: Shapes,
    qk_norms: Iterable[str],
    config: Mapping[str, Any] | None,
) -> Site | None:
    """Return the site of `layout` at `path`; None for linear attention."""
    gains = _qk_gains(path, layout, shapes)
    for name in qk_norms:
        if name not in gains:
            raise LayoutError(f"{name}: a norm on queries or keys stored in an unknown way, so the form is not known")
    if layout.storage is None:
        return None
    others = {role: join_path(path, leaf) for role, leaf in layout.others.items()}
    storage = layout.storage(join_path(path, layout.query), join_path(path, layout.key), others, layout.transposed)
    scope = scope_of(config, path) if config is not None else None
    cross = is_cross(own_path, scope) if scope is not None and "_class_name" in scope.config else None
    return Site(
        path=own_path,
        cross=storage.widths_differ(shapes) or (bool(CROSS.search(own_path)) if cross is None else cross),
        scope=scope,
        layout=layout,
        storage=storage,
        gains=gains,
    )


def _qk_gains(path: str, layout: Layout, shapes: Shapes) -> tuple[str | None, str | None]:
    """Return the names of the QK-norm gains of queries and keys, None where there are none."""
    for leaves in QK_GAINS if layout.gains is None else (layout.gains,):
        query, key = (name if (name := join_path(path, leaf)) in shapes else None for leaf in leaves)
        if query is not None or key is not None:
            return query, key
    return None, None


def _check_no_adapters(known_paths: Iterable[str], adapters: Mapping[str, str]) -> None:
    """Raise LayoutError for a layer whose queries or keys are not those of its weights alone."""
    for path in known_paths:
        if path in adapters:
            raise LayoutError(
                f"{adapters[path]}: an adapter changes the queries or keys, so the form is not that of the weights "
                "alone; merge it into them first"
            )
