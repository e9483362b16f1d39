"""Open a hub model in a separate process, because the client reads its environment variables when it is imported."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.weights.sources.checkpoint import ReadRequest
from tests.weights.made_checkpoints import Array

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Outcome:
    """Result of the process: an error message, or the tensors it read."""

    error: str | None
    config: dict[str, Any] | None
    remote: bool
    names: list[str]
    log: str
    tensors: dict[str, Array]


@dataclass(frozen=True)
class Machine:
    """A user's machine with its own caches and environment."""

    home: Path
    endpoint: str

    def open(self, ref: str, *requests: ReadRequest, plan: bool = True, **environment: str) -> Outcome:
        """Open `ref`, plan the requests (unless `plan` is false) and read them."""
        return self.open_each([ref], *requests, plan=plan, **environment)[0]

    def open_each(
        self, refs: Sequence[str], *requests: ReadRequest, plan: bool = True, **environment: str
    ) -> list[Outcome]:
        """Open several models, one after the other in one process."""
        job = {"refs": refs, "requests": [[request.name, request.rows] for request in requests], "plan": plan}
        result = self.home / "result"
        result.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_", "XDG_"))}
        environment = {
            **kept,
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(self.home / "hf"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HF_HUB_DISABLE_XET": "1",
            **environment,
        }
        arguments = [sys.executable, "-W", "error", "-m", "tests.weights.sources.hub_job", json.dumps(job), str(result)]
        done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [self._outcome(result / str(i), requests, done.stderr) for i in range(len(refs))]

    def _outcome(self, folder: Path, requests: Sequence[ReadRequest], log: str) -> Outcome:
        report = json.loads((folder / "report.json").read_text())
        tensors = {}
        if report["error"] is None:
            with np.load(folder / "tensors.npz") as saved:
                tensors = {request.name: saved[str(i)] for i, request in enumerate(requests)}
        return Outcome(**report, log=log, tensors=tensors)


def main() -> None:
    from attngeo.errors import AttngeoError
    from attngeo.weights.sources import hub
    from attngeo.weights.sources.open import open_checkpoint

    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("attngeo").setLevel(logging.INFO)
    hub.FIRST_WAIT = 0.01  # as many tries, but shorter waits
    job, result = json.loads(sys.argv[1]), Path(sys.argv[2])
    requests = [
        ReadRequest(name, rows and tuple((start, stop) for start, stop in rows)) for name, rows in job["requests"]
    ]
    for i, ref in enumerate(job["refs"]):
        report: dict[str, Any] = {"error": None, "config": None, "remote": False, "names": []}
        folder = result / str(i)
        folder.mkdir(exist_ok=True)
        try:
            with open_checkpoint(ref) as checkpoint:
                report |= {"config": checkpoint.config, "remote": checkpoint.remote, "names": list(checkpoint.tensors)}
                if job["plan"]:
                    checkpoint.plan_reads(requests)
                np.savez(
                    folder / "tensors.npz", **{str(k): checkpoint.read(request) for k, request in enumerate(requests)}
                )
        except AttngeoError as error:
            report["error"] = str(error)
        (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
