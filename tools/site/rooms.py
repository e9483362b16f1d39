"""The directive `room`: the public names of a package and of its sub-packages, from their docstrings.

A name that several packages offer is described once, where it is met first; the others refer to it.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Hashable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

from tools.site.docstrings import to_rst


class Room(SphinxDirective):
    """`.. room:: attngeo.weights`: one section per package, in the order of the folder."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for package in packages(self.arguments[0]):
            if offered(package) and package.__name__ != self.arguments[0]:  # the page has the title of the first
                lines += [package.__name__, "-" * len(package.__name__), ""]
            lines += package_lines(package, described_elsewhere(package))
        node = nodes.section()
        node.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, self.arguments[0]), node)
        return node.children


def packages(name: str) -> Iterator[ModuleType]:
    """Yield a package and, except for attngeo itself, those inside it that list what they offer."""
    package = import_module(name)
    yield package
    if name == "attngeo":
        return
    for info in pkgutil.iter_modules(getattr(package, "__path__", None) or []):
        if info.ispkg:
            yield from packages(f"{name}.{info.name}")


def offered(package: ModuleType) -> dict[str, Any]:
    """Return what `__all__` of a package names, without the sub-packages."""
    values = {name: getattr(package, name, None) for name in getattr(package, "__all__", ())}
    return {
        name: value
        for name, value in values.items()
        if value is not None and not inspect.ismodule(value) and not name.startswith("__")
    }


def described_elsewhere(package: ModuleType) -> dict[str, str]:
    """Return the names of a package that another package has described before: name → its full name there."""
    import attngeo

    first: dict[Hashable, str] = {}
    order = ["attngeo", *(f"attngeo.{room}" for room in attngeo._ROOMS)]
    for room in order:
        for other in packages(room):
            if other is package:
                keys = {name: key(name, value) for name, value in offered(package).items()}
                return {name: first[value] for name, value in keys.items() if value in first}
            for name, value in offered(other).items():
                first.setdefault(key(name, value), f"{other.__name__}.{name}")
    raise ValueError(f"{package.__name__} is not in a room")


def key(name: str, value: Any) -> Hashable:
    """Return what tells two names apart: the object, for constants the name and the value."""
    return id(value) if inspect.isclass(value) or inspect.isroutine(value) else (name, repr(value))


def package_lines(package: ModuleType, elsewhere: dict[str, str]) -> list[str]:
    names = offered(package)
    if not names:
        return []
    title = package.__name__
    lines = []
    if title != "attngeo":  # its docstring lists the names that follow anyway
        lines += to_rst((inspect.getdoc(package) or "").splitlines())
    for name, value in sorted(names.items()):
        if name not in elsewhere:
            lines += described(f"{title}.{name}", value)
    if elsewhere:
        also = ", ".join(f":py:obj:`{name} <{full}>`" for name, full in elsewhere.items())
        lines += [f"Described elsewhere: {also}.", ""]
    return lines


def described(full: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {full}", "   :members:", ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}", ""]
    # Constants have no docstring of their own: show the value where it is short.
    text = repr(value)
    return [f".. py:data:: {full}", *([f"   :value: {text}"] if len(text) < 60 and "\n" not in text else []), ""]
