"""A worker process of an atlas: reads references from stdin, scores them, and writes outcomes to stdout.

Messages are lines of JSON: first the atlas and the options, which is answered by "ready", then references.

It ends when stdin ends, that is also when the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import IO

from attngeo.atlas.options import ScoreOptions
from attngeo.atlas.reference import Reference
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.atlas.task import score_reference


def main() -> None:
    """Work until stdin ends. The first line names the atlas and the options, each further line a reference."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver ends its workers
    # Whatever a library prints goes to stderr: stdout is for outcomes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline() or "null")
    if job is None:
        return
    store, options = Store(Path(job["root"])), ScoreOptions(**job["options"])
    _answer(answers, {"state": "ready"})
    for line in sys.stdin:
        try:
            outcome = score_reference(store, Reference(**json.loads(line)), options)
            _answer(answers, {"state": outcome.state, "message": outcome.message})
        except AtlasWriteError as error:
            _answer(answers, {"state": "stopped", "message": str(error)})


def _answer(answers: IO[bytes], message: object) -> None:
    try:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()
    except BrokenPipeError:  # nobody waits for the answer; the rows are in the atlas
        os._exit(0)
