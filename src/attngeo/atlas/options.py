"""`Options` that name what an atlas computes, those of scoring among them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

RESULT_VERSION = 4  # raised whenever the same weights and options give other rows


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
