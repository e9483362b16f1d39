"""Fuzz every kind of file that attngeo reads.

python -m tests.fuzz --cases 10000 --seed 0           all kinds, about the same number of cases each
python -m tests.fuzz --kind gguf --cases 500          one kind
python -m tests.fuzz --kind gguf --replay 17          one case, here, with its files kept and its traceback
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import run_cases
from tests.fuzz.kinds import all_kinds
from tests.fuzz.worker import run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the files that attngeo reads.")
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases in all (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case of each kind (default 0)")
    parser.add_argument("--kind", action="append", help="only this kind; may be given several times")
    parser.add_argument("--processes", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run the case with this seed in this process")
    options = parser.parse_args()
    kinds = options.kind or list(all_kinds())
    if options.replay is not None:
        home = Path(tempfile.mkdtemp(prefix="attngeo-fuzz-"))
        outcome = run_case(kinds[0], options.replay, home)
        print("\n".join(f"{key}: {value}" for key, value in outcome.items()), f"files: {home}", sep="\n")
        return outcome["outcome"] == "failure"
    share = -(-options.cases // len(kinds))
    cases = [(kind, options.seed + number) for number in range(share) for kind in kinds][: options.cases]
    began = time.perf_counter()
    failures, counts = run_cases(cases, options.processes)
    for failure in failures:
        print(str(failure).encode("utf-8", "backslashreplace").decode())
    seconds = time.perf_counter() - began
    print(f"{len(cases)} cases in {seconds:.0f} s: {counts['result']} results, {counts['error']} errors of one line, "
          f"{counts['failure']} failures")  # fmt: skip
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
