"""Every test of the experiments runs torch on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_torch_thread(one_torch_thread: None) -> None:
    """Use the fixture of the same name in every test below this folder."""
