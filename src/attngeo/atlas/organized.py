"""`Organized`: what one call of `Atlas.organize` did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Organized:
    """What became of the tasks of one call of `Atlas.organize`, one per network, text and question.

    >>> print(Organized(organized=120, known=0, failed=2))
    120 results computed, 0 known before, 2 failed
    """

    organized: int
    known: int  # answers that were in the atlas
    failed: int  # now, or in an earlier call and not tried again

    def __str__(self) -> str:
        results = "result" if self.organized == 1 else "results"
        return f"{self.organized} {results} computed, {self.known} known before, {self.failed} failed"
