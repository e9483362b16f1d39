"""Executors: who runs the tasks of one call of an atlas, and in which processes.

Executor         the interface: tasks in, outcomes out, in any order
InProcess        one after the other in the calling process
LocalProcesses   several worker processes on this machine (`work` is what each of them does)
RayTasks         tasks of Ray, on one machine or a cluster (in `ray_tasks`)
WorkerLost       the error of a task that ends every process

The rows are the same whoever computes them: each task runs on one core, with single-threaded BLAS.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any, Protocol

from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.atlas.task import Outcome, Task
from attngeo.errors import AttngeoError
from attngeo.io.threads import next_item

TRIES = 5  # worker processes that one task may lose before it counts as failed
# One thread each, decided before any BLAS is loaded; bars of downloads would mix on the terminal.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# The import path of this process, and nothing from the user's script, which need not be importable.
START = "import sys; sys.path[:] = {path!r}; from attngeo.atlas.executors import work; work()"


class Executor(Protocol):
    """Runs tasks; an AtlasWriteError ends the call."""

    def run(self, store: Store, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        """Yield the outcome of each task as soon as it is known."""


class WorkerLost(AttngeoError):
    """The process of a task ended each time the task was tried."""


class InProcess:
    """Tasks in the calling process, in order."""

    def run(self, store: Store, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        return (task.run(store) for task in tasks)


class LocalProcesses:
    """Tasks in `count` worker processes on this machine, which end when this process ends, however it does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, store: Store, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        left, outcomes = iter(tasks), SimpleQueue[Outcome | BaseException]()
        workers = [_Worker(store) for _ in range(min(self.count, len(tasks)))]
        threads = [threading.Thread(target=worker.serve, args=(left, outcomes), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            for _ in tasks:
                outcome = next_item(outcomes)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            for worker in workers:
                worker.stop()
            for thread in threads:
                thread.join()


class _Worker:
    """One worker process at a time, replaced if it dies; a pickled task goes in, a pickled outcome comes out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # the process has imported what it needs and read the store
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self, tasks: Iterator[Task], outcomes: SimpleQueue[Outcome | BaseException]) -> None:
        """Do tasks until none is left; several threads take from one iterator of a list, which is safe."""
        try:
            for task in tasks:
                if self._stopped:
                    break
                outcomes.put(self._outcome(task))
        except BaseException as error:
            outcomes.put(error)
        finally:
            self._finish()

    def stop(self) -> None:
        """End the process; what it was writing is left out of the atlas."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _outcome(self, task: Task) -> Outcome:
        """Return the outcome of a task; another process tries again where one dies."""
        for _ in range(TRIES):
            reply = self._ask(task)
            if isinstance(reply, AtlasWriteError):
                raise reply
            if reply is not None:
                return reply
            started = self._ready
            code = self._finish()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if self._stopped:
                raise AttngeoError("the call has ended")
        if not started:  # nothing about this task: no other one would fare better
            raise AttngeoError(f"no worker process could be started, it {how}")
        lost = f"its worker process {how}, {TRIES} times; too little memory is a likely cause"
        return task.fail(self._store, WorkerLost(lost))

    def _ask(self, task: Task) -> Outcome | AtlasWriteError | None:
        """Return the answer of the process, which is started if there is none; None if it has died."""
        with self._lock:
            if self._process is None and not self._stopped:
                path = [os.path.abspath(entry) for entry in sys.path]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", START.format(path=path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=os.environ | ENVIRONMENT,
                    start_new_session=True,  # Ctrl-C reaches only the driver, which ends its workers
                )
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            if not self._ready:
                pickle.dump(self._store, process.stdin)
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            self._ready = self._ready or pickle.load(process.stdout)
            return pickle.load(process.stdout)  # type: ignore[no-any-return]
        except (OSError, EOFError, pickle.UnpicklingError):
            return None

    def _finish(self) -> int:
        """Let the process end by itself, and return its exit code."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # the process has died
                assert pipe is not None
                pipe.close()
        return process.wait()


def work() -> None:
    """Do tasks in a worker process, until stdin ends, that is also when the process that started it is killed.

    Messages are pickles: first the store, which is answered by True, then tasks, each answered by its outcome, or by an
    AtlasWriteError.
    """
    # Whatever a library prints goes to stderr: stdout is for outcomes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(EOFError, pickle.UnpicklingError):  # the driver is done, or was killed while it wrote
        store = pickle.load(sys.stdin.buffer)
        _answer(answers, True)
        while True:
            task = pickle.load(sys.stdin.buffer)
            try:
                _answer(answers, task.run(store))
            except AtlasWriteError as error:
                _answer(answers, error)


def _answer(answers: IO[bytes], message: Any) -> None:
    try:
        pickle.dump(message, answers)
        answers.flush()
    except BrokenPipeError:  # nobody waits for the answer; the rows are in the atlas
        os._exit(0)
