"""A worker process of an atlas: reads a job and tasks from stdin, does them, and writes outcomes to stdout.

Messages are pickles: first the job, which is answered by True, then tasks, each answered by its outcome, or by an
AtlasWriteError. It ends when stdin ends, that is also when the process that started it is killed.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import IO

from attngeo.atlas.store import AtlasWriteError


def main() -> None:
    """Work until stdin ends."""
    # Whatever a library prints goes to stderr: stdout is for outcomes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        job = pickle.load(sys.stdin.buffer)
        _answer(answers, True)
        while True:
            task = pickle.load(sys.stdin.buffer)
            try:
                _answer(answers, job.run(task))
            except AtlasWriteError as error:
                _answer(answers, error)
    except (EOFError, pickle.UnpicklingError):  # the driver is done, or was killed while it wrote
        return


def _answer(answers: IO[bytes], message: object) -> None:
    try:
        pickle.dump(message, answers)
        answers.flush()
    except BrokenPipeError:  # nobody waits for the answer; the rows are in the atlas
        os._exit(0)
