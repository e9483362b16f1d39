"""`AtlasStatus`: how much an atlas holds, what could not be scored, and which calls are at work."""

from __future__ import annotations

from dataclasses import dataclass

from attngeo.atlas.progress import RunningCall, running_calls
from attngeo.atlas.store import Store
from attngeo.atlas.tables import failures_frame, models_frame


@dataclass(frozen=True)
class AtlasStatus:
    """The size of an atlas at one moment.

    >>> print(AtlasStatus(models=3, copies=1, failures=2, parts=2, bytes=21_000))
    3 models (1 with the weights of another one), 2 failures, 2 parts, 21.0 kB
    """

    models: int  # models at one revision, scored with one set of options
    copies: int  # those among them whose scores are those of another one
    failures: int
    parts: int  # files with scores
    bytes: int  # of all files
    organized: int = 0  # answers of networks on texts: trees and sparsity, softmax invariance
    running: tuple[RunningCall, ...] = ()  # calls that are adding to it now

    def __str__(self) -> str:
        copies = f" ({self.copies} with the weights of another one)" if self.copies else ""
        counts = [f"{_count(self.models, 'model')}{copies}", _count(self.failures, "failure")]
        counts += [_count(self.parts, "part"), f"{self.bytes / 1000:,.1f} kB"]
        if self.organized:
            counts.insert(-1, _count(self.organized, "result") + " of networks on texts")
        return "\n".join([", ".join(counts), *map(str, self.running)])


def read_status(store: Store) -> AtlasStatus:
    """Return the status of an atlas, which other processes may be writing to."""
    failures = failures_frame(store).height
    models = models_frame(store)
    parts = len(store.names("scores"))
    copies = models.height - models["part"].n_unique()
    organized = len(store.names("organized")) + len(store.names("invariance"))
    running = tuple(running_calls(store.root))
    return AtlasStatus(models.height, copies, failures, parts, store.size(), organized, running)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
