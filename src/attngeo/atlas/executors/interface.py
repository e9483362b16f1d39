"""What an executor is: it runs the tasks of one call of an atlas, somewhere, and yields their outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from attngeo.atlas.outcome import Outcome
from attngeo.errors import AttngeoError


class Job(Protocol):
    """What the tasks of one call share: the folder of the atlas, the options. It is pickled for other processes."""

    def run(self, task: Any) -> Outcome:
        """Do one task and return its outcome; only an AtlasWriteError is raised, and ends the call.

        It may be repeated, in another process, if the process is killed halfway.
        """

    def lose(self, task: Any, error: AttngeoError) -> Outcome:
        """Record that a task cannot be done, because the processes that tried have died."""

    def memory(self, task: Any) -> int:
        """Return how many bytes of memory a process needs for one task."""


class Executor(Protocol):
    """Runs tasks; an AtlasWriteError ends the call."""

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Yield the outcome of each task as soon as it is known."""


class WorkerLost(AttngeoError):
    """The process of a task ended each time the task was tried."""


class InProcess:
    """Tasks in the calling process, in order."""

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        return map(job.run, tasks)
