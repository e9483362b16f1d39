"""Every public name explains itself with an example that runs."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

import attngeo
from attngeo import organization
from attngeo.show.organization_text import tree_text

EXPLAINED = {name: getattr(organization, name) for name in organization.__all__} | {
    "capture": attngeo.capture,
    "tree_text": tree_text,
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_example(name: str) -> None:
    if name == "capture":
        pytest.importorskip("transformers")
    known: dict[str, Any] = vars(organization) | EXPLAINED | {"np": np}
    tests = [
        test
        for test in doctest.DocTestFinder(recurse=False).find(EXPLAINED[name], name, globs=dict(known))
        if test.examples
    ]
    assert tests, f"{name} has no example"
    for test in tests:
        said: list[str] = []
        outcome = doctest.DocTestRunner().run(test, out=said.append)
        assert outcome.failed == 0, "".join(said)
