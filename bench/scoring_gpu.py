"""Score a checkpoint shaped like an 8B LLaMA-3 on a GPU: `PYTHONPATH=src:. python3 bench/scoring_gpu.py [FOLDER]`.

Everything that a table holds by default is computed; the time is compared with that of reading the bytes of the file
once, from the cache of the system into memory. The scores of the first layers are compared with those of the CPU.
Needs torch, numpy and safetensors, but neither polars nor typer; takes about a minute. Writes FOLDER/scoring_gpu.json
and FOLDER/profile.txt, where the device spends its time and when the program waits for it. `--tiny` runs a small shape,
also on a CPU.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from attngeo.io.files import write_file
from bench import scoring as shapes

TINY = "--tiny" in sys.argv
CHECKED = 2  # layers whose scores are compared with those of the CPU
RUNS = 5
KERNELS = 25  # listed in the profile
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


def device_profile(folder: Path, device: str) -> list[str]:
    """Return how long the device was busy while a checkpoint was scored, and its slowest kernels."""
    from torch.profiler import ProfilerActivity, profile

    from attngeo.weights.scoring.score import score_rows

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as found:
        score_rows(folder, device=device)
    spans: dict[str, list[tuple[float, float]]] = {"anything": [], "kernels": [], "copies to the device": []}
    for event in found.events():
        if str(event.device_type).endswith("CUDA") and not event.name.startswith("aten"):
            span = event.time_range.start, event.time_range.end
            spans["anything"].append(span)
            if event.name.startswith("Memcpy HtoD"):
                spans["copies to the device"].append(span)
            elif not event.name.startswith("Mem"):
                spans["kernels"].append(span)
    lines = []
    for name, some in spans.items():
        busy, last = 0.0, -math.inf
        for first, stop in sorted(some):
            busy += max(0.0, stop - max(first, last))
            last = max(last, stop)
        length = max((stop for _, stop in some), default=0) - min((first for first, _ in some), default=0)
        lines.append(f"device busy with {name}: {busy / 1e3:.1f} ms in {len(some)} spans, of {length / 1e3:.1f} ms")
    kernels = [one for one in found.key_averages() if str(one.device_type).endswith("CUDA")]
    kernels.sort(key=lambda one: -one.self_device_time_total)
    return lines + [
        f"{one.self_device_time_total / 1e3:8.2f} ms {one.count:6d} × {one.key[:150]}" for one in kernels[:KERNELS]
    ]


def main() -> int:
    import torch

    from attngeo.weights.scoring.score import score_rows

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if TINY:
        shapes.LAYERS, shapes.WIDTH, shapes.HEADS, shapes.GROUPS, shapes.SIZE = 3, 256, 8, 2, 32
        sizes = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 8}
        shapes.CONFIG |= sizes | {"num_key_value_heads": 2, "head_dim": 32}
    elif device == "cpu":
        print("no GPU available: nothing measured; --tiny runs a small shape on the CPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        os.environ.setdefault("ATTNGEO_CACHE", f"{name}/cache")
        folder = Path(name)
        path = shapes.write_checkpoint(folder)
        layers = list(range(CHECKED))
        ours, theirs = (score_rows(folder, layers=layers, device=one).rows for one in (None, device))
        worst = differences(ours, theirs)
        found: list[Any] = []
        score_rows(folder, layers=layers)  # draws the nulls
        first = shapes.seconds_of(lambda: score_rows(folder, device=device))  # warms up the device
        reads, took = [], []
        for _ in range(RUNS):
            reads.append(shapes.seconds_to_read(path))
            found.clear()
            took.append(shapes.seconds_of(lambda: found.extend(score_rows(folder, device=device).rows)))
        opened = min(shapes.seconds_of(lambda: open_only(folder)) for _ in range(3))
        size = path.stat().st_size
        memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        profile = device_profile(folder, device)
    assert len(found) == shapes.LAYERS * (shapes.HEADS + 1)
    ratio = min(took) / min(reads)
    result = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "bytes": size,
        "seconds": took,
        "seconds_to_read": reads,
        "seconds_of_the_first_run": first,
        "seconds_to_open": opened,
        "ratio": ratio,
        "peak_bytes_on_the_device": memory,
        "difference": worst,
    }
    print(json.dumps(result, indent=1))
    targets = [
        (f"{ratio:.2f} × the time of reading the file", f"at most {LIMIT} ×", ratio <= LIMIT),
        (f"differs from the CPU by {worst:.2f} of the tolerance", "at most 1", worst <= 1),
    ]
    if folders := [argument for argument in sys.argv[1:] if not argument.startswith("-")]:
        write_file(Path(folders[0]) / "scoring_gpu.json", json.dumps(result, indent=1).encode())
        write_file(Path(folders[0]) / "profile.txt", "".join(f"{line}\n" for line in profile).encode())
    return shapes.print_targets(targets)


def open_only(folder: Path) -> None:
    """Find the layers of the checkpoint without reading them."""
    from attngeo.weights.layout.layers import open_layers

    with open_layers(folder, norms=True):
        pass


if __name__ == "__main__":
    sys.exit(main())
