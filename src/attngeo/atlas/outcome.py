"""`Outcome`: what became of one reference that was added to an atlas; `write_failure`: an error as such an outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attngeo.atlas.reference import Reference
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.errors import AttngeoError, disk_is_full, first_line, one_line

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


def write_failure(
    store: Store,
    name: str,
    reference: Reference,
    options: str,
    results: int,
    error: Exception,
    part: str | None = None,
    about: str = "",
) -> Outcome:
    """Write a row of failures, and return the outcome. A full disk is not the fault of a model, and is raised.

    name:    of the file
    results: version of the results
    part:    that could not be computed, of a network on a text
    about:   what the message begins with
    """
    message = str(error) if isinstance(error, AttngeoError) else one_line(first_line(error))
    if disk_is_full(error):
        raise AtlasWriteError(message) from error
    row = {"model": reference.model, "revision": reference.revision, "options": options, "results": results}
    store.write("failures", name, [row | {"part": part, "kind": type(error).__name__, "message": about + message}])
    return Outcome(reference, "failed", about + message)
