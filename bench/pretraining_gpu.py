"""Measure how fast the pre-training loop runs, relative to the matrix products of the same device.

    python -m bench.pretraining_gpu TOKENS [--size 4x256 12x768] [--objective masked] [--steps 400] [--profile]

TOKENS is a folder of token files, packed or not (`python -m experiments.initialisation prepare`). The measurement is in
`experiments.initialisation.speed`; `python -m experiments.initialisation speed` compares the architectures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.initialisation.speed import measure
from experiments.initialisation.text.packed_tokens import unpacked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pretraining_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("tokens", type=Path, nargs="?", metavar="TOKENS")
    parser.add_argument("--size", nargs="+", default=["4x256", "12x768"])
    parser.add_argument("--objective", nargs="+", default=["masked"])
    parser.add_argument("--steps", type=int, default=400, help="steps per stretch")
    parser.add_argument("--profile", action="store_true", help="also print the kernels that take most of the time")
    options = parser.parse_args()
    if options.tokens is None:  # called by `python -m bench`
        print("no TOKENS given: nothing measured")
        return 0
    measure(unpacked(options.tokens), options.size, options.objective, options.steps, options.profile, print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
