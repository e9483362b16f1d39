"""`organize` on a GPU: it gives the trees of the CPU, and how much faster. `python -m bench.organization_gpu [FOLDER]`.

Results are written to FOLDER/organization_gpu.json. `--cpu` also times the large tensor on the CPU, which takes minutes
without numba.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.io import threads
from attngeo.io.files import write_file
from attngeo.organization import Organization, Tree, kernels, organize, planted, tree_distance

GOLDENS = Path(__file__).parents[1] / "tests" / "goldens"
PLANTED = ((64, 64, 24), (128, 128, 48), (96, 150, 37), (256, 256, 128))
LARGE, SMALL = (512, 512, 384), (256, 256, 192)
TARGET = 20.0  # speed-up over two CPU threads
STAGES = (
    "cosine_affinity",
    "affinity_from_distance",
    "flexible_tree",
    "expanded_slices",
    "haar_tree_in_place",
    "forward",
)


def timed(array: np.ndarray, device: str | None) -> tuple[float, Organization]:
    """Return the seconds that `organize` took and its result."""
    import torch

    if device is not None:
        torch.cuda.synchronize()
    start = time.perf_counter()
    organization = organize(array, device=device)
    return time.perf_counter() - start, organization


def compare_trees() -> list[dict[str, Any]]:
    """Return one row per golden and planted tensor that compares the trees and distances of CPU and GPU."""
    inputs: list[tuple[str, np.ndarray]] = []
    for path in sorted(GOLDENS.glob("*_*.npz")):
        with np.load(path) as golden:
            inputs.append((path.stem, golden["input"]))
    for shape in PLANTED:
        for seed in range(5 if np.prod(shape) < 2e6 else 2):
            inputs.append((f"planted {shape} seed {seed}", planted(shape, seed)[0]))
    rows = []
    for name, array in inputs:
        import torch

        on_cpu, on_gpu = organize(array), organize(array, device="cuda")
        trees: dict[int, Tree] = dict(enumerate(on_cpu.history[-1].trees))
        a, b = tree_distance(array, 0, trees), tree_distance(torch.tensor(array, device="cuda"), 0, trees)
        rows.append(
            {
                "input": name,
                "same trees": on_cpu.trees == on_gpu.trees,
                "same history": [s.trees for s in on_cpu.history] == [s.trees for s in on_gpu.history],
                "l1 difference": abs(on_cpu.history[-1].l1 / on_gpu.history[-1].l1 - 1),
                "distance difference": float(np.abs(a - b).max() / a.max()),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def compare_capture(device: str) -> list[dict[str, Any]]:
    """Return one row per model and stage that compares the network tensors captured on the CPU and on `device`."""
    from attngeo import NetworkTensor, capture
    from tests.live.tiny_live_models import model_inputs, tiny_model

    rows = []
    for kind, stack in (("bert", None), ("gpt2", None), ("llama", None), ("t5", "cross"), ("beit", None)):
        model, inputs = tiny_model(kind), model_inputs(kind)
        for stage in ("logits", "probabilities"):
            on_cpu = capture(model.to("cpu"), inputs, stage=stage, stack=stack)
            on_device = capture(model.to(device), inputs, stage=stage, stack=stack)
            assert isinstance(on_cpu, NetworkTensor) and isinstance(on_device, NetworkTensor)
            difference = float(np.abs(on_cpu.values - on_device.values).max() / np.abs(on_cpu.values).max())
            rows.append({"model": kind, "stage": stage, "difference": difference})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def seconds_per_stage(array: np.ndarray) -> dict[str, float]:
    """Return the seconds of one call by stage; the GPU is synchronised after each stage."""
    import torch

    from attngeo.organization.distance import SliceDistances

    seconds: dict[str, float] = {}
    module = import_module("attngeo.organization.organize")
    functions: list[tuple[Any, str]] = [(module, name) for name in STAGES] + [(SliceDistances, "through")]
    originals = [getattr(owner, name) for owner, name in functions]

    def timed_stage(name: str, work: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = work(*arguments, **options)
            torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        return call

    try:
        for (owner, name), work in zip(functions, originals, strict=True):
            setattr(owner, name, timed_stage(name, work))
        took, _ = timed(array, "cuda")
    finally:
        for (owner, name), work in zip(functions, originals, strict=True):
            setattr(owner, name, work)
    return seconds | {"rest": took - sum(seconds.values())}


def main() -> int:
    try:
        import torch

        available = torch.cuda.is_available()
    except ImportError:
        available = False
    if not available:
        print("no GPU available: nothing measured")
        return 0
    arguments = [argument for argument in sys.argv[1:] if argument != "--cpu"]
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report["numba"] = kernels.cpu() is not None
    try:
        import triton

        report["triton"] = triton.__version__
    except ImportError:
        report["triton"] = None
    report["checks"] = compare_trees()
    report["captured"] = compare_capture("cuda")
    threads.thread_count = lambda: 2
    torch.set_num_threads(2)
    organize(planted((24, 20, 12))[0].astype(np.float32))  # compile the kernels for float32 too
    for shape in (SMALL, LARGE):
        array = planted(shape)[0].astype(np.float32)
        runs = [timed(array, "cuda") for _ in range(4)][1:]  # the first run compiles
        row: dict[str, Any] = {
            "gpu seconds": statistics.median(took for took, _ in runs),
            "stages": seconds_per_stage(array),
        }
        row["gpu gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
        if shape == SMALL or "--cpu" in sys.argv:
            took, organization = timed(array, None)
            row |= {"cpu seconds, 2 threads": took, "ratio": took / row["gpu seconds"]}
            report["checks"].append({"input": str(shape), "same trees": organization.trees == runs[0][1].trees})
        report[str(shape)] = row
        print(shape, json.dumps(row), flush=True)
    if arguments:
        folder = Path(arguments[0])
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "organization_gpu.json", json.dumps(report, indent=1).encode())
    fast = report[str(LARGE)].get("ratio", TARGET) >= TARGET
    same = all(check["same trees"] for check in report["checks"])
    return 0 if fast and same and all(row["difference"] < 1e-5 for row in report["captured"]) else 1


if __name__ == "__main__":
    sys.exit(main())
