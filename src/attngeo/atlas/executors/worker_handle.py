"""`WorkerHandle`: the side of a worker process that the driver holds."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import IO, Any

from attngeo.atlas.executors.interface import Job
from attngeo.atlas.outcome import Outcome
from attngeo.atlas.store import AtlasWriteError

# One thread each, decided before any BLAS is loaded; bars of downloads would mix on the terminal.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# The import path of this process, and nothing from the user's script, which need not be importable.
START = "import sys; sys.path[:] = {path!r}; from attngeo.atlas.executors.worker import main; main()"


class WorkerHandle:
    """One worker process: a pickled task goes in, a pickled outcome comes out (see `worker`)."""

    def __init__(self, job: Job) -> None:
        self.alive = True
        self.ready = False  # it has imported what it needs and read the job
        path = [os.path.abspath(entry) for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START.format(path=path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,  # Ctrl-C reaches only the driver, which ends its workers
        )
        self._send(job)

    def ask(self, task: Any) -> Outcome | None:
        """Return the outcome of a task; None if the process has died."""
        self._send(task)
        self.ready = self.ready or self._receive() is not None
        reply = self._receive() if self.ready else None
        if reply is None:
            self.finish()
            return None
        if isinstance(reply, AtlasWriteError):
            raise reply
        assert isinstance(reply, Outcome)
        return reply

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
        try:
            return pickle.load(_pipe(self._process.stdout))
        except (EOFError, pickle.UnpicklingError):
            return None

    def _send(self, message: object) -> None:
        try:
            pipe = _pipe(self._process.stdin)
            pipe.write(pickle.dumps(message))
            pipe.flush()
        except OSError:
            return  # the process has died, which reading will show


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
