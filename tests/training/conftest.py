"""Run torch on one thread in every test of the training room."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_torch_thread(one_torch_thread: None) -> None:
    """Use the fixture `one_torch_thread` in every test below this folder."""
