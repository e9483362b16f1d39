"""Fixtures of the tests that prove layouts against live models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from attngeo.weights.layout.facts import families, family


@pytest.fixture
def restored_facts() -> Iterator[None]:
    """Afterwards drop the facts that a proof made attngeo assume about a type."""
    yield
    families.cache_clear()
    family.cache_clear()


@pytest.fixture
def ignored_warnings() -> Iterator[None]:
    """Ignore the warnings of transformers, diffusers and torch about tiny models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
