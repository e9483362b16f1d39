"""A worker process of an atlas: reads references from stdin, scores them, and writes outcomes to stdout.

It ends when stdin ends, that is also when the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

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
    for line in sys.stdin:
        try:
            outcome = score_reference(store, Reference(**json.loads(line)), options)
            reply = {"state": outcome.state, "message": outcome.message}
        except AtlasWriteError as error:
            reply = {"state": "stopped", "message": str(error)}
        try:
            answers.write(json.dumps(reply).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:  # nobody waits for the answer; the rows are in the atlas
            os._exit(0)
