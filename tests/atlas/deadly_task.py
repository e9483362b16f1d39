"""A task that ends its process, and one that never ends."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from attngeo.atlas.reference import Reference
from attngeo.atlas.store import Store
from attngeo.atlas.task import Outcome, ScoreTask


@dataclass(frozen=True)
class DeadlyTask(ScoreTask):
    """The model called "deadly" kills its process; a path is made a file, and then the task is never finished."""

    def work(self, store: Store) -> Outcome:
        if self.reference.model.endswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.isabs(self.reference.model):
            Path(self.reference.model).touch()
            threading.Event().wait()
        return Outcome(self.reference, "scored")


def deadly_tasks(*names: str) -> list[DeadlyTask]:
    """Return one task for each name."""
    return [DeadlyTask(Reference(name, None)) for name in names]
