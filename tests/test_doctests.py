"""The examples in docstrings run and print what they say, and every public name has one."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import attngeo

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "src" / "attngeo", ROOT / "experiments")

NEED_TRANSFORMERS = ("attngeo.training", "attngeo.live", "attngeo.organization.capture")
# Names that an example would not make clearer: a version, an exception.
WITHOUT_EXAMPLE = {"__version__", "AttngeoError"}


def modules_with_examples() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            if ">>> " in path.read_text("utf-8"):
                parts = path.relative_to(folder.parent).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


def public_names() -> dict[str, Any]:
    """Return what an example may use without importing it, as after `from attngeo.organization import *`."""
    import numpy as np

    from attngeo import organization

    names = {name: getattr(attngeo, name) for name in attngeo.__all__}
    return (
        names
        | {name: getattr(organization, name) for name in organization.__all__}
        | {"attngeo": attngeo, "np": np, "Path": Path}
    )


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples may write files where they run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples(name: str) -> None:
    if name.startswith(NEED_TRANSFORMERS):
        pytest.importorskip("transformers")
    module = import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(module, name, globs=public_names() | vars(module)):
        printed: list[str] = []
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=printed.append)
        assert outcome.failed == 0, "".join(printed)


def documented() -> dict[str, Any]:
    from attngeo import organization
    from attngeo.show.organization import tree_text

    names = {f"attngeo.{name}": getattr(attngeo, name) for name in attngeo.__all__ if name not in WITHOUT_EXAMPLE}
    names |= {f"attngeo.organization.{name}": getattr(organization, name) for name in organization.__all__}
    return names | {"attngeo.show.organization.tree_text": tree_text}


def test_every_public_name_has_an_example() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [
        name
        for name, value in documented().items()
        if not any(test.examples for test in finder.find(value, name, module=False))
    ]
    assert not missing
