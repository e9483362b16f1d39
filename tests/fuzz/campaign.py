"""Run many fuzz cases in worker processes, and say of each failure how to reproduce it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300  # imports and valid files of every kind
CASE_SECONDS = 60  # then the worker is taken to hang; the limit of 5 s per case is checked by the worker itself


@dataclass(frozen=True)
class Failure:
    """A case that ended neither in a result nor in an AttngeoError of one line."""

    kind: str
    seed: int | None
    reason: str
    details: str = ""

    def __str__(self) -> str:
        if self.seed is None:
            return f"{self.kind}: the valid files are not read: {self.reason}\n{self.details}"
        again = f"reproduce with: python -m tests.fuzz --kind '{self.kind}' --replay {self.seed}"
        return f"{self.kind}, seed {self.seed}: {self.reason}\n    {again}\n{self.details}"


class Worker:
    """A process of `tests.fuzz.worker`; one that died or hangs is replaced at the next case."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.started: list[Failure] = []  # kinds whose valid files are not read

    def run(self, kind: str, seed: int) -> Failure | str:
        """Run one case; return what went wrong, or "result" or "error"."""
        process = self._ready()
        assert process.stdin is not None
        process.stdin.write(f"{seed} {kind}\n")
        process.stdin.flush()
        answer = self._answer(CASE_SECONDS)
        if answer is None:
            code = self._end()
            return Failure(kind, seed, f"the process ended with code {code}, or gave no answer in {CASE_SECONDS} s")
        return _failure(answer) or str(answer["outcome"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._end()

    def _ready(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "tests.fuzz.worker", *self.kinds]
            pipe = subprocess.PIPE
            environment = {
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                "OMP_NUM_THREADS": "1",
                "MPLBACKEND": "agg",
            }
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
            self._answers = queue.Queue()
            threading.Thread(target=self._listen, args=(self._process, self._answers), daemon=True).start()
            self.started = []
            while "ready" not in (answer := self._answer(START_SECONDS) or {"ready": False}):
                if failure := _failure(answer) or (answer["outcome"] != "result" and _refused(answer)):
                    self.started.append(failure)
            if not answer["ready"]:
                raise RuntimeError("the fuzz worker did not start: run python -m tests.fuzz.worker to see why")
        return self._process

    def _listen(self, process: subprocess.Popen[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(json.loads(line))
        answers.put(None)

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def _end(self) -> int:
        assert self._process is not None
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet cannot be sent any more
                    pipe.close()
        self._process = None
        return code


def _failure(answer: dict[str, Any]) -> Failure | None:
    if answer["outcome"] != "failure":
        return None
    return Failure(answer["kind"], answer["seed"], answer["reason"], answer.get("details", str(answer.get("was", ""))))


def _refused(answer: dict[str, Any]) -> Failure:
    return Failure(answer["kind"], None, answer["message"])


@contextmanager
def worker(kinds: Sequence[str]) -> Iterator[Worker]:
    """Yield a worker for these kinds, and end it afterwards."""
    made = Worker(kinds)
    try:
        yield made
    finally:
        made.close()


def run_cases(cases: Sequence[tuple[str, int]], processes: int = 1) -> tuple[list[Failure], dict[str, int]]:
    """Run (kind, seed) cases; return the failures, and how many cases ended in what."""
    kinds = list(dict.fromkeys(kind for kind, _ in cases))
    waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    failures: list[Failure] = []
    counts = {"result": 0, "error": 0, "failure": 0}

    def work() -> None:
        with worker(kinds) as mine:
            while True:
                try:
                    kind, seed = waiting.get_nowait()
                except queue.Empty:
                    return
                outcome = mine.run(kind, seed)
                failures.extend(mine.started)
                mine.started = []
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    outcome = "failure"
                counts[outcome] += 1

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures, counts
