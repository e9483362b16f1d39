"""A job that ends its process on one of its tasks, and never ends on another."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from attngeo.atlas.outcome import Outcome
from attngeo.atlas.reference import Reference
from attngeo.errors import AttngeoError


@dataclass(frozen=True)
class DeadlyJob:
    """Tasks are names; the one called "deadly" kills its process, a path is made a file and then never finished."""

    def run(self, task: str) -> Outcome:
        if task == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.isabs(task):
            Path(task).touch()
            threading.Event().wait()
        return Outcome(Reference(task, None), "scored")

    def lose(self, task: str, error: AttngeoError) -> Outcome:
        return Outcome(Reference(task, None), "failed", str(error))

    def memory(self, task: str) -> int:
        return 100 << 20
