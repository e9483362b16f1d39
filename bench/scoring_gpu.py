"""Score a checkpoint shaped like an 8B LLaMA-3 on a GPU: `PYTHONPATH=src:. python3 bench/scoring_gpu.py [FOLDER]`.

Everything that a table holds by default is computed; the time is compared with that of reading the bytes of the file
once, from the cache of the system into memory. The scores of the first layers are compared with those of the CPU.
Needs torch, numpy and safetensors, but neither polars nor typer; takes about a minute. Writes FOLDER/scoring_gpu.json.
`--tiny` runs a small shape, also on a CPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from attngeo.io.atomic import write_file
from bench import scoring as shapes

TINY = "--tiny" in sys.argv
CHECKED = 2  # layers whose scores are compared with those of the CPU
RUNS = 5
LIMIT = 1.5
TOLERANCES = {"rank_symmetric": 2e-3, "rank_skew": 2e-3}  # relative; scores: 4e-6 absolute


def differences(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """Return the largest difference between two tables, in units of its tolerance."""
    worst = 0.0
    for row, other in zip(rows, others, strict=True):
        for name, value in row.items():
            if name.endswith(("_z", "_p")) or not isinstance(value, float):
                assert isinstance(value, float) or value == other[name], name
                continue
            tolerance = TOLERANCES[name] * abs(value) if name in TOLERANCES else 4e-6 * max(1.0, abs(value))
            worst = max(worst, abs(value - other[name]) / tolerance)
    return worst


def main() -> int:
    import torch

    from attngeo.weights.scoring.score import score_rows

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if TINY:
        shapes.LAYERS, shapes.WIDTH, shapes.HEADS, shapes.GROUPS, shapes.SIZE = 3, 256, 8, 2, 32
        sizes = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 8}
        shapes.CONFIG |= sizes | {"num_key_value_heads": 2, "head_dim": 32}
    elif device == "cpu":
        sys.exit("no CUDA device; --tiny runs a small shape on the CPU")
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        os.environ.setdefault("ATTNGEO_CACHE", f"{name}/cache")
        folder = Path(name)
        path = shapes.write_checkpoint(folder)
        layers = list(range(CHECKED))
        ours, theirs = (score_rows(folder, layers=layers, device=one).rows for one in (None, device))
        worst = differences(ours, theirs)
        found: list[Any] = []
        score_rows(folder, device=device)  # warms up the device and draws the nulls
        reads, took = [], []
        for _ in range(RUNS):
            reads.append(shapes.seconds_to_read(path))
            found.clear()
            took.append(shapes.seconds_of(lambda: found.extend(score_rows(folder, device=device).rows)))
        only_read = shapes.seconds_of(lambda: read_all(folder, device))
        size = path.stat().st_size
    assert len(found) == shapes.LAYERS * (shapes.HEADS + 1)
    ratio = min(took) / min(reads)
    result = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "bytes": size,
        "seconds": took,
        "seconds_to_read": reads,
        "seconds_to_read_onto_the_device": only_read,
        "ratio": ratio,
        "difference": worst,
    }
    print(json.dumps(result, indent=1))
    targets = [
        (f"{ratio:.2f} × the time of reading the file", f"at most {LIMIT} ×", ratio <= LIMIT),
        (f"differs from the CPU by {worst:.2f} of the tolerance", "at most 1", worst <= 1),
    ]
    for figure, target, met in targets:
        print(f"{figure}; {target}; {'met' if met else 'MISSED'}")
    if folders := [argument for argument in sys.argv[1:] if not argument.startswith("-")]:
        write_file(Path(folders[0]) / "scoring_gpu.json", json.dumps(result, indent=1).encode())
    return 0 if all(met for *_, met in targets) else 1


def read_all(folder: Path, device: str) -> None:
    """Read all layers onto the device without scoring them."""
    from attngeo.weights.layout.layers import open_layers
    from attngeo.weights.scoring.device.reading import open_device, read_on_device

    with open_layers(folder, norms=True) as layers:
        for _ in read_on_device(layers, open_device(device)):
            pass


if __name__ == "__main__":
    sys.exit(main())
