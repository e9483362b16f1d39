"""`Site`: one attention layer of a model, with the names of its tensors and how its heads lie in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.layout.families import Family
from attngeo.weights.layout.storage.base import Heads, Shapes, Storage
from attngeo.weights.layout.table import Layout

# "7", or torchvision's "encoder_layer_7". More digits than a layer number can have are a name.
_NUMBER = re.compile(r"^((?:\w*(?:layer|block)_)?)(\d{1,9})$")


@dataclass(frozen=True)
class Location:
    """Where an attention layer is in a model."""

    path: str  # "encoder.layer.3.attention.self"
    cross: bool  # queries and keys read different sequences
    scope: Scope | None  # the part of the config that describes the layer; None: there is no config

    @property
    def indices(self) -> tuple[int, ...]:
        """Return the numbers in the path, outermost first."""
        return tuple(int(match[2]) for word in self.path.split(".") if (match := _NUMBER.fullmatch(word)))

    @property
    def template(self) -> str:
        """Return the path with "*" in place of its numbers; the layers of one stack share it."""
        return path_template(self.path)


@dataclass(frozen=True)
class Site(Location):
    """An attention layer whose layout is known."""

    layout: Layout  # the row of the table
    storage: Storage  # the tensors, and how the heads lie in them
    heads: Heads | None = None  # None: not counted yet, or no head count is known
    gains: tuple[str | None, str | None] = (None, None)  # tensors with the QK-norm gains of queries and keys

    @property
    def query(self) -> str:
        return self.storage.query

    @property
    def key(self) -> str:
        return self.storage.key

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the query and key tensors; one name where the two are fused."""
        return tuple(dict.fromkeys((self.query, self.key)))

    def heads_or_whole(self, shapes: Shapes) -> Heads:
        """Return the heads; one head that holds the whole layer where no head count is known."""
        return self.heads if self.heads is not None else self.storage.single_head(shapes)


def facts_of(location: Location, known: Family) -> Family:
    """Return the facts about the part of a model that a layer belongs to; those about the whole model are `known`."""
    return known if location.scope is None else location.scope.facts(known)


def path_template(path: str) -> str:
    """Return `path` with "*" in place of its numbers.

    >>> path_template("encoder.layer.3.attention.self")
    'encoder.layer.*.attention.self'
    """
    return ".".join(_NUMBER.sub(r"\1*", word) for word in path.split("."))


def join_path(path: str, leaf: str) -> str:
    """Return the name `leaf` below `path`; either may be empty."""
    return f"{path}.{leaf}" if path and leaf else path or leaf
