"""Executors: who runs the tasks of one call of `Atlas.add`, and in which processes.

    Executor         the interface: references in, outcomes out, in any order
    InProcess        one after the other in the calling process
    LocalProcesses   several worker processes on this machine; one that dies is replaced and its task repeated

The rows are the same whoever computes them: each task runs on one core, with single-threaded BLAS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any, Protocol

from attngeo.atlas.options import ScoreOptions
from attngeo.atlas.reference import Reference
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.atlas.task import Outcome, fail, score_reference
from attngeo.errors import AttngeoError

TRIES = 5  # worker processes that one task may lose before it counts as failed
# One thread each, decided before any BLAS is loaded; bars of downloads would mix on the terminal.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# The import path of this process, and nothing from the user's script, which need not be importable.
_START = "import sys; sys.path[:] = {path!r}; from attngeo.atlas.worker import main; main()"


class WorkerLost(AttngeoError):
    """The worker process of a task ended each time the task was tried."""


class Executor(Protocol):
    """Runs tasks; an AtlasWriteError ends the call."""

    def run(self, store: Store, references: Sequence[Reference], options: ScoreOptions) -> Iterator[Outcome]:
        """Yield the outcome of each reference as soon as it is known."""


class InProcess:
    """Tasks in the calling process, in order."""

    def run(self, store: Store, references: Sequence[Reference], options: ScoreOptions) -> Iterator[Outcome]:
        return (score_reference(store, reference, options) for reference in references)


class LocalProcesses:
    """Tasks in `count` worker processes on this machine, which end when this process ends, however it does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, store: Store, references: Sequence[Reference], options: ScoreOptions) -> Iterator[Outcome]:
        call = _Call(store, references, options)
        threads = [
            threading.Thread(target=call.serve, name=f"attngeo-worker-{i}", daemon=True)
            for i in range(min(self.count, len(references)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in references:
                outcome = call.outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            call.stop()
            for thread in threads:
                thread.join()


class _Call:
    """The state of one call, shared by the threads that each look after one worker process."""

    def __init__(self, store: Store, references: Sequence[Reference], options: ScoreOptions) -> None:
        self.outcomes: SimpleQueue[Outcome | BaseException] = SimpleQueue()
        self._store, self._options = store, options
        self._references = iter(references)
        self._workers: set[_Worker] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Give references to one worker process until none is left; replace the process if it dies."""
        worker: _Worker | None = None
        try:
            while (reference := self._next()) is not None:
                outcome = None
                for _ in range(TRIES):
                    worker = worker if worker is not None and worker.alive else self._start()
                    if (outcome := worker.ask(reference)) is not None or self._stopped:
                        break
                if self._stopped:
                    return
                if outcome is None:
                    assert worker is not None
                    if not worker.ready:  # nothing about this model: no other one would fare better
                        raise AttngeoError(f"no worker process could be started, it {_end_of(worker)}")
                    outcome = fail(self._store, reference, self._options, _lost(reference, worker))
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

    def _next(self) -> Reference | None:
        with self._lock:
            return None if self._stopped else next(self._references, None)

    def _start(self) -> _Worker:
        with self._lock:
            worker = _Worker(self._store, self._options)
            self._workers = {other for other in self._workers if other.alive} | {worker}
            if self._stopped:
                worker.kill()
            return worker


def _lost(reference: Reference, worker: _Worker) -> WorkerLost:
    how = f"its worker process {_end_of(worker)}, {TRIES} times"
    return WorkerLost(f"{reference}: {how}; too little memory is a likely cause")


def _end_of(worker: _Worker) -> str:
    code = worker.finish()
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


class _Worker:
    """One worker process: a line of JSON with a reference goes in, a line with an outcome comes out."""

    def __init__(self, store: Store, options: ScoreOptions) -> None:
        self.alive = True
        self.ready = False  # it has imported what it needs and read the first line
        path = [os.path.abspath(entry) for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START.format(path=path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )
        self._send({"root": os.path.abspath(store.root), "options": options.plain()})

    def ask(self, reference: Reference) -> Outcome | None:
        """Return the outcome of a reference; None if the process has died."""
        self._send({"model": reference.model, "revision": reference.revision})
        self.ready = self.ready or self._receive() is not None
        reply = self._receive() if self.ready else None
        if reply is None:
            self.finish()
            return None
        if reply["state"] == "stopped":
            raise AtlasWriteError(reply["message"])
        return Outcome(reference, reply["state"], reply["message"])

    def finish(self) -> int:
        """Let the process end by itself, and return its exit code."""
        self.alive = False
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                _pipe(pipe).close()
            except OSError:
                continue  # the process has died
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def _receive(self) -> Any:
        """Return the next message; None if the process has died."""
        line = _pipe(self._process.stdout).readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def _send(self, message: object) -> None:
        try:
            pipe = _pipe(self._process.stdin)
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            return  # the process has died, which reading will show


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
