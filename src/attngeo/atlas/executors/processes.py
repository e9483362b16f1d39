"""`LocalProcesses`: several worker processes on this machine; one that dies is replaced and its task repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from attngeo.atlas.executors.interface import Job, WorkerLost
from attngeo.atlas.executors.worker_handle import WorkerHandle
from attngeo.atlas.outcome import Outcome
from attngeo.errors import AttngeoError
from attngeo.io.threads import next_item

TRIES = 5  # worker processes that one task may lose before it counts as failed


class LocalProcesses:
    """Tasks in `count` worker processes on this machine, which end when this process ends, however it does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        call = _Call(job, tasks)
        threads = [
            threading.Thread(target=call.serve, name=f"attngeo-worker-{i}", daemon=True)
            for i in range(min(self.count, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in tasks:
                outcome = next_item(call.outcomes)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            call.stop()
            for thread in threads:
                thread.join()


class _Call:
    """The state of one call, shared by the threads that each look after one worker process."""

    def __init__(self, job: Job, tasks: Sequence[Any]) -> None:
        self.outcomes: SimpleQueue[Outcome | BaseException] = SimpleQueue()
        self._job = job
        self._tasks = iter(tasks)
        self._workers: set[WorkerHandle] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Give tasks to one worker process until none is left; replace the process if it dies."""
        worker: WorkerHandle | None = None
        try:
            while (task := self._next()) is not None:
                outcome = None
                for _ in range(TRIES):
                    worker = worker if worker is not None and worker.alive else self._start()
                    if (outcome := worker.ask(task)) is not None or self._stopped:
                        break
                if self._stopped:
                    return
                if outcome is None:
                    assert worker is not None
                    if not worker.ready:  # nothing about this task: no other one would fare better
                        raise AttngeoError(f"no worker process could be started, it {_end_of(worker)}")
                    how = f"its worker process {_end_of(worker)}, {TRIES} times"
                    outcome = self._job.lose(task, WorkerLost(f"{how}; too little memory is a likely cause"))
                self.outcomes.put(outcome)
        except BaseException as error:
            self.outcomes.put(error)
        finally:
            if worker is not None:
                worker.finish()

    def stop(self) -> None:
        """End all worker processes; what they were writing is left out of the atlas."""
        with self._lock:
            self._stopped = True
            for worker in self._workers:
                worker.kill()

    def _next(self) -> Any:
        with self._lock:
            return None if self._stopped else next(self._tasks, None)

    def _start(self) -> WorkerHandle:
        with self._lock:
            worker = WorkerHandle(self._job)
            self._workers = {other for other in self._workers if other.alive} | {worker}
            if self._stopped:
                worker.kill()
            return worker


def _end_of(worker: WorkerHandle) -> str:
    code = worker.finish()
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
