"""A process that runs fuzz cases under limits: it reads one case per line and answers with one line of JSON.

    python -m tests.fuzz.worker          reads lines `SEED KIND` from standard input

The limit on memory is set on the process, so that an allocation of more than 1 GB fails with a MemoryError. The parent
process ends a worker that does not answer; a worker that dies is noticed by the end of its output.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

MEMORY = 1 << 30  # bytes that one case may allocate
SECONDS = 5.0  # of wall-clock time per case, on a machine that is not busy with something else
CACHES = ("ATTNGEO_CACHE", "HF_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")


def run_case(kind: str, seed: int | None, home: Path) -> dict[str, Any]:
    """Run one case and return its outcome: `result`, `error` (an AttngeoError), or `failure` with the reason.

    seed: of the mutation; None reads the valid files
    home: an empty folder for the case; the caller removes it
    """
    from attngeo.errors import AttngeoError
    from tests.fuzz.kinds import all_kinds

    one = all_kinds()[kind]
    files: Mapping[str, bytes] = one.files()
    rng = Random(f"{kind} {seed}")
    if seed is not None:
        files = one.mutate(rng, files)
    folder, out, elsewhere = home / "files", home / "out", home / "elsewhere"
    for made in (folder, out, elsewhere):
        made.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    before = _contents(folder)
    came_from, temporary = os.getcwd(), tempfile.tempdir
    os.chdir(elsewhere)
    os.environ["TMPDIR"] = tempfile.tempdir = str(elsewhere)
    began, used = time.perf_counter(), time.process_time()
    outcome: dict[str, Any]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.read(rng, folder, out)
        outcome = {"outcome": "result"}
    except AttngeoError as error:
        outcome = {"outcome": "error", "message": str(error)}
        if problem := _message_problem(str(error)):
            outcome = {"outcome": "failure", "reason": problem, "details": traceback.format_exc()[-4000:]}
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        text = f"{type(error).__name__}: {error}"[:500]
        outcome = {"outcome": "failure", "reason": text, "details": traceback.format_exc()[-6000:]}
    seconds, used = time.perf_counter() - began, time.process_time() - used
    os.chdir(came_from)
    tempfile.tempdir = temporary
    os.environ.pop("TMPDIR")
    if seconds > SECONDS and used > SECONDS / 2:  # a case that only waited for a core is no failure
        outcome = {"outcome": "failure", "reason": f"took {seconds:.1f} s, at most {SECONDS} expected", "was": outcome}
    if _contents(folder) != before:
        outcome = {"outcome": "failure", "reason": "changed the files it was to read", "was": outcome}
    if left := [str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*") if path.is_file()]:
        outcome = {"outcome": "failure", "reason": f"left files behind: {left[:5]}", "was": outcome}
    return outcome | {"seconds": round(seconds, 3)}


def _message_problem(message: str) -> str | None:
    """Return why an error message is not one readable line, or None."""
    if not message.strip():
        return "the error has no message"
    if len(message.splitlines()) != 1 or not message.isprintable():
        return f"the message is not one printable line: {message[:300]!r}"
    if len(message) > 2000:
        return f"the message has {len(message)} characters: {message[:200]!r}"
    return None


def _contents(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def limit_memory() -> None:
    """Let the process allocate 1 GB beyond what it uses now."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    root = Path(tempfile.mkdtemp(prefix="attngeo-fuzz-"))
    for name in CACHES:
        os.environ[name] = str(root / "cache")
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        from tests.fuzz.kinds import all_kinds

        warm_up = sys.argv[1:] or list(all_kinds())
        for number, kind in enumerate(warm_up):  # imports and valid files, before the limit is set
            case = root / f"warm {number}"
            case.mkdir()
            outcome = run_case(kind, None, case)
            answers.write(json.dumps(outcome | {"kind": kind, "seed": None}) + "\n")
            shutil.rmtree(case)
        limit_memory()
        answers.write(json.dumps({"ready": True}) + "\n")
        for number, line in enumerate(sys.stdin):
            seed, kind = line.rstrip("\n").split(" ", 1)
            case = root / str(number)
            case.mkdir()
            try:
                outcome = run_case(kind, int(seed), case)
            except Exception:  # of the mutation
                trace = traceback.format_exc()[-4000:]
                outcome = {"outcome": "failure", "reason": "the fuzzer itself failed", "details": trace}
            answers.write(json.dumps(outcome | {"kind": kind, "seed": int(seed)}) + "\n")
            shutil.rmtree(case)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
