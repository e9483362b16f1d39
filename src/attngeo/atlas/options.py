"""`Options` that name what an atlas computes, those of scoring among them, and the digest by which parts are named."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

RESULT_VERSION = 2  # raised whenever the same weights and options give other rows


@dataclass(frozen=True)
class Options:
    """Options that are part of the name of a result."""

    @property
    def text(self) -> str:
        """Return the options that differ from the defaults, as JSON; empty if none does.

        >>> ScoreOptions(nulls=False).text
        '{"nulls": false}'
        """
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return json.dumps(changed) if changed else ""


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Options of `attngeo.score` that an atlas accepts."""

    heads: bool = True
    nulls: bool = True
    folded: bool = True  # also for models on the hub, so that rows do not depend on where a model is stored
    num_heads: int | None = None
    unproven: bool = False


def digest(*values: Any) -> str:
    """Return a hash of plain values: 40 hexadecimal digits.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a1")
    (True, False)
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:40]
