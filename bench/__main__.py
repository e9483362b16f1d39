"""`python -m bench [NAME...]` runs benchmarks of this folder, by default all, each in a process of its own.

Separate processes keep the peak memory of one benchmark out of the measurement of the next.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    known = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    names = sys.argv[1:] or known
    if unknown := set(names) - set(known):
        print(f"unknown benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    missed = []
    for name in names:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=FOLDER.parent).returncode:
            missed.append(name)
        print(flush=True)
    print(f"targets missed in: {', '.join(missed)}" if missed else "every target met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
