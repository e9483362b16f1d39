"""Comparison of numbers on a page with those of a result."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(shown: Any, expected: Any) -> None:
    """Fail if the numbers of a page, which have five digits, are not those of a result; None is no number."""
    np.testing.assert_allclose(np.array(shown, float), np.array(expected, float), rtol=1e-4, atol=1e-12)
