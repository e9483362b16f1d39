"""Find the attention layers of a checkpoint by its tensors' names, and say how their heads are stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import (
    Scope,
    head_sizes,
    key_heads,
    other_key_heads,
    query_heads,
    scope_of,
    width,
)
from attngeo.weights.layout.table import CROSS, GATED, NOT_ATTENTION, QK_GAINS, TABLE, Storage

Shapes = Mapping[str, tuple[int, ...]]
_NUMBER = re.compile(r"^((?:\w*(?:layer|block)_)?)(\d+)$")  # "7", or torchvision's "encoder_layer_7"

_QK_NORM = re.compile(r"(.*)\.(?:q|k|query|key)_?(?:layer_?)?norm\b.*weight$")


@dataclass(frozen=True)
class Heads:
    """Head counts of one layer and their size: H query heads, G key heads, r."""

    queries: int
    keys: int
    size: int


@dataclass(frozen=True)
class Site:
    """One attention layer found in a checkpoint: where its tensors lie and how to cut them."""

    path: str  # "encoder.layer.3.attention.self"
    storage: Storage
    query: str  # tensor names
    key: str
    more: Mapping[str, str]
    cross: bool
    scope: Scope | None  # None: no config
    heads: Heads | None = None  # None: the head count is not known
    gated: bool = False  # query rows are [H, (query, gate), r]
    gains: tuple[str | None, str | None] = (None, None)  # QK-norm gains of query and key

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(int(found[2]) for word in self.path.split(".") if (found := _NUMBER.fullmatch(word)))

    @property
    def template(self) -> str:
        return numberless(self.path)


def find_sites(shapes: Shapes, config: Mapping[str, Any] | None) -> list[Site]:
    """Every attention layer the table can place, in order of path numbers; heads not yet resolved."""
    kind = str((config or {}).get("model_type", ""))
    by_leaf: dict[str, list[str]] = {}
    for name in shapes:
        words = name.split(".")
        for count in (1, 2, 3):
            by_leaf.setdefault(".".join(words[-count:]), []).append(name)
    norms: dict[str, list[str]] = {}  # path → gains on its queries and keys
    for name in shapes:
        if found := _QK_NORM.match(name):
            norms.setdefault(found[1], []).append(name)
    placed: dict[str, Site] = {}
    for storage in TABLE:
        if storage.types is not None and kind not in storage.types:
            continue
        for name in by_leaf.get(storage.query, ()):
            path = name[: -len(storage.query)].rstrip(".")
            site = _site(path, storage, shapes, norms, config)
            if site is not None:
                placed.setdefault(site.path, site)
    sites = [site for site in placed.values() if site.storage.kind != "other"]
    _check_partners(sites, placed, by_leaf, config)
    return sorted(sites, key=lambda site: (site.template, site.indices))


def _check_partners(
    sites: list[Site], placed: Mapping[str, Site], by_leaf: Mapping[str, list[str]], config: Mapping[str, Any] | None
) -> None:
    """A layer that has queries but lost its keys is an error, unless the model shares keys between layers."""
    if any("shared" in key or "sharing" in key for key in _all_keys(config or {})):
        return
    known = {(site.template, site.storage.query): site for site in sites if site.query != site.key}
    for template, leaf in known:
        for name in by_leaf.get(leaf, ()):
            path = name[: -len(leaf)].rstrip(".")
            if path not in placed and numberless(path) == template:
                key = known[template, leaf].storage.key
                raise LayoutError(f"{name}: has no key beside it, expected {path}.{key} as in the other layers")


def _all_keys(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        yield str(key)  # a live model's id2label counts with whole numbers
        if isinstance(value, Mapping):
            yield from _all_keys(value)


def numberless(path: str) -> str:
    """The path with its numbers taken out: layers of one tower share it."""
    return ".".join(_NUMBER.sub(r"\1*", word) for word in path.split("."))


def _site(
    path: str, storage: Storage, shapes: Shapes, norms: Mapping[str, list[str]], config: Mapping[str, Any] | None
) -> Site | None:
    def join(leaf: str) -> str:
        return f"{path}.{leaf}" if path else leaf

    more = {role: join(leaf) for role, leaf in storage.more.items()}
    if NOT_ATTENTION.search(path) or not all(name in shapes for name in (join(storage.key), *more.values())):
        return None
    scope = scope_of(config, path) if config is not None else None
    if storage.when is not None:
        wanted = not storage.when.startswith("!")
        if scope is None or bool(scope.get(storage.when.lstrip("!"), False)) != wanted:
            return None
    gains: tuple[str | None, str | None] = (None, None)
    for query_leaf, key_leaf in QK_GAINS:
        query, key = join(query_leaf), join(key_leaf)
        if query in shapes or key in shapes:
            gains = (query if query in shapes else None, key if key in shapes else None)
            break
    for name in norms.get(path, ()):
        if name not in gains:
            raise LayoutError(
                f"{name}: a norm on queries or keys stored in a way that is not known, so M is not either"
            )
    own = join(storage.part) if storage.part else path
    query, key = join(storage.query), join(storage.key)
    apart = storage.kind == "separate" and shapes[query][1:2] != shapes[key][1:2]  # two widths, so two sequences
    return Site(own, storage, query, key, more, apart or bool(CROSS.search(own)), scope, gains=gains)


def count_heads(site: Site, shapes: Shapes, num_heads: int | None) -> Site:
    """The site with its heads settled: the config says how many, the shapes how large; a contradiction is an error."""
    declared = _declared_heads(site, num_heads)
    if site.storage.kind == "latent":
        if declared is None:
            raise LayoutError(f"{site.key}: latent attention needs a config with its head sizes")
        return replace(site, heads=_latent(site, declared[1]))
    if declared is None:
        return site
    key, queries = declared
    rows = _rows(site, shapes)
    if site.storage.kind in ("blocks", "heads", "codegen"):
        return replace(site, heads=_fused(site, queries, rows[0]))
    if site.storage.kind == "key-value":
        rows = (rows[0], rows[1] // 2)
    return _separate(site, key, queries, rows)


def _declared_heads(site: Site, num_heads: int | None) -> tuple[str, int] | None:
    if num_heads is not None:
        return "num_heads", num_heads
    found = query_heads(site.scope, site.path, site.cross) if site.scope is not None else None
    if found is None:
        return None
    key, value = found
    if isinstance(value, (list, tuple)):
        index = site.indices[0] if site.indices else 0
        if index >= len(value):
            raise LayoutError(f"config.json: {key} has {len(value)} entries, {site.path} needs entry {index}")
        value = value[index]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LayoutError(f"config.json: {key} is {value!r}, expected a positive whole number of heads")
    return key, value


def check_width(site: Site, shapes: Shapes) -> None:
    """The tokens the queries read must be as wide as the config says; for types where that holds at all."""
    told = width(site.scope) if site.scope is not None else None
    if told is not None and not site.cross and told[1] != (found := query_width(site, shapes)):
        raise LayoutError(f"{site.query}: reads tokens of width {found}, but {told[0]} is {told[1]}")


def query_width(site: Site, shapes: Shapes) -> int:
    """Width of the token vectors the queries of `site` read."""
    name = site.more.get("query_down", site.query)
    return shapes[name][0 if site.storage.transposed else 1]


def _rows(site: Site, shapes: Shapes) -> tuple[int, int]:
    """Output widths of the query and key tensors."""

    def rows(name: str) -> int:
        shape = list(shapes[name])
        while len(shape) > 2 and shape[-1] == 1:  # a 1×1 convolution is a matrix
            shape.pop()
        if site.storage.transposed:
            out = 1
            for n in shape[1:]:
                out *= n
            return out
        if len(shape) != 2:
            raise LayoutError(f"{name}: shape {list(shapes[name])}, expected a matrix [out, in]")
        return shape[0]

    return rows(site.query), rows(site.key)


def _separate(site: Site, key: str, queries: int, rows: tuple[int, int]) -> Site:
    query_rows, key_rows = rows
    if query_rows % queries:
        raise LayoutError(f"{site.query}: {query_rows} rows do not divide into {queries} heads ({key})")
    size, gated = query_rows // queries, False
    sizes = head_sizes(site.scope) if site.scope is not None else set()
    if site.scope is not None and GATED.search(str(site.scope.config.get("model_type"))) and size // 2 in sizes:
        size, gated = size // 2, True
    if sizes and size not in sizes and not site.cross:
        raise LayoutError(
            f"{site.query}: {query_rows} rows make {queries} heads ({key}) of size {size}, "
            f"but the config says {' or '.join(map(str, sorted(sizes)))}"
        )
    if key_rows % size or queries % (key_rows // size):
        raise LayoutError(
            f"{site.key}: {key_rows} rows do not hold {size}-wide key heads in a number that divides "
            f"{queries} query heads ({key})"
        )
    keys = key_rows // size
    told = key_heads(site.scope) if site.scope is not None else None
    if site.scope is None or told is None or not isinstance(told[1], int) or site.cross:
        return replace(site, heads=Heads(queries, keys, size), gated=gated)
    if keys != told[1] and keys not in other_key_heads(site.scope) and sizes:
        raise LayoutError(f"{site.key}: holds {keys} key heads of size {size}, but {told[0]} is {told[1]}")
    return replace(site, heads=Heads(queries, keys, size), gated=gated)


def _fused(site: Site, queries: int, rows: int) -> Heads:
    """H + 2G heads of one size share the rows; G is the config's, or H where it says nothing."""
    scope = site.scope
    told = key_heads(scope) if scope is not None else None
    keys = told[1] if told and isinstance(told[1], int) else queries
    if scope is not None and scope.get("multi_query", False) and not scope.get("new_decoder_architecture", False):
        keys = 1
    elif (
        scope is not None and scope.get("multi_query") is not None and not scope.get("new_decoder_architecture", False)
    ):
        keys = queries
    for count in (keys, queries):
        if count > 0 and queries % count == 0 and rows % (queries + 2 * count) == 0:
            return Heads(queries, count, rows // (queries + 2 * count))
    raise LayoutError(
        f"{site.query}: {rows} rows do not hold {queries} query, {keys} key and {keys} value heads of one size"
    )


def _latent(site: Site, queries: int) -> Heads:
    assert site.scope is not None
    sizes = [site.scope.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
    if not all(isinstance(size, int) for size in sizes):
        raise LayoutError(f"{site.key}: latent attention needs qk_nope_head_dim and qk_rope_head_dim in the config")
    return Heads(queries, queries, sum(sizes))


_ATTENTION_WORDS = re.compile(r"att|query|qkv|q_proj|\bq\b", re.IGNORECASE)


def unplaced(names: Iterable[str]) -> list[str]:
    """Tensors that look like attention, for the message when nothing could be placed."""
    return [name for name in names if _ATTENTION_WORDS.search(name) and not name.endswith("bias")]
