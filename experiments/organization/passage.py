"""Sparsity on one passage, with a control that destroys positions, from folders that `attngeo organize` wrote.

python -m experiments.organization.passage "MiniLM, logits=out/minilm" … > results/organization/passage.jsonl

The control permutes the values inside each row of each head: which rows and heads have peaks stays, where the peaks are
does not. It is organised anew, which takes as long as the network itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from attngeo import NetworkTensor, SparsityControls, organize
from experiments.page_tables import pipe_table

BASES = ("trees", "shuffled axes", "dyadic trees", "cosines per head")


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return the sparsity of a network in each basis, and the gain of its trees over dyadic trees with its controls."""
    comparison = SparsityControls.load(folder / "comparison.json")
    values = NetworkTensor.load(folder / "tensor.npz").values
    rows = np.random.default_rng(0).permuted(values, axis=1)
    gains = {
        "gain": comparison.gain(),
        "permuted": comparison.gain(permuted=True),
        "within rows": organize(rows).expand().compare(permuted=False).gain(),
    }
    found = [row for row in comparison.rows() if row["basis"] in BASES]
    return {"network": name, "shape": list(values.shape), **gains, "rows": found}


def tables(path: Path) -> dict[str, str]:
    """Return the tables of the measurements in a log."""
    measured = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    sparsity, gains = [], []
    for one in measured:
        for row in one["rows"]:
            exponent = "" if row["exponent"] is None else f"{row['exponent']:.3f} ± {row['exponent error']:.3f}"
            shares = [f"{100 * row[f'share of {energy}%']:.2g}%" for energy in (90, 99)]
            sparsity.append([f"{one['network']}: {row['basis']}", f"{row['l1/l2']:.0f}", *shares, exponent])
        gains.append([one["network"], *(f"{100 * one[name]:.1f}%" for name in ("gain", "permuted", "within rows"))])
    return {
        "passage": pipe_table(
            ["", "l1/l2", "share that holds 90% of the energy", "99%", "exponent α"],
            sparsity,
        ),
        "passage gains": pipe_table(
            ["", "gain over dyadic trees", "all values permuted", "values permuted inside each row"], gains
        ),
    }


def main() -> None:
    """Print one line of JSON per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NAME=FOLDER")
    for network in parser.parse_args().networks:
        name, _, folder = network.partition("=")
        print(json.dumps(measure(name, Path(folder)), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
