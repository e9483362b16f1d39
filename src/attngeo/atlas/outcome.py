"""`Outcome`: what became of one reference that was added to an atlas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attngeo.atlas.reference import Reference

# scored: new rows; linked: the same weights were scored before, under another name or revision;
# known: nothing to do; failed: there is a row in the table of failures
State = Literal["scored", "linked", "known", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one reference."""

    reference: Reference
    state: State
    message: str = ""  # of a failure
    read: int = 0  # bytes of weights that were read, each counted once

    @property
    def line(self) -> str:
        """Return the message of a failure with the name of the model."""
        return self.message if self.reference.model in self.message else f"{self.reference}: {self.message}"
