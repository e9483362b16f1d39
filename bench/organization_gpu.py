"""Organising on a GPU: the same trees as on the CPU, and how much sooner. `python -m bench.organization_gpu [FOLDER]`.

Writes FOLDER/organization_gpu.json. `--cpu` also times the large tensor on the CPU, which takes minutes without numba.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.io import threads
from attngeo.organization import Tree, organize, planted, tree_distance
from attngeo.organization.kernels import dispatch

GOLDENS = Path(__file__).parents[1] / "tests" / "goldens"
PLANTED = ((64, 64, 24), (128, 128, 48), (96, 150, 37), (256, 256, 128))
LARGE, SMALL = (512, 512, 384), (256, 256, 192)
TARGET = 20.0
STAGES = ("cosine_affinity", "affinity_from_distance", "flexible_tree", "expanded_slices", "haar_tree", "forward")


def timed(array: np.ndarray, device: str | None) -> tuple[float, Any]:
    import torch

    if device is not None:
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = organize(array, device=device)
    return time.perf_counter() - start, found


def same_trees() -> list[dict[str, Any]]:
    """CPU and GPU on the goldens and on planted tensors: trees equal, distances to 1e-9."""
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

        here, there = organize(array), organize(array, device="cuda")
        trees: dict[int, Tree] = dict(enumerate(here.history[-1].trees))
        a, b = tree_distance(array, 0, trees), tree_distance(torch.tensor(array, device="cuda"), 0, trees)
        rows.append(
            {
                "input": name,
                "same trees": here.trees == there.trees,
                "same history": [s.trees for s in here.history] == [s.trees for s in there.history],
                "l1 difference": abs(here.history[-1].l1 / there.history[-1].l1 - 1),
                "distance difference": float(np.abs(a - b).max() / a.max()),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def same_capture(device: str) -> list[dict[str, Any]]:
    """What a model's heads make of an input, captured where the model is: on the CPU, then on `device`."""
    from attngeo import capture
    from tests.live.tiny_live_models import model_inputs, tiny_model

    rows = []
    for kind, stack in (("bert", None), ("gpt2", None), ("llama", None), ("t5", "cross"), ("beit", None)):
        model, inputs = tiny_model(kind), model_inputs(kind)
        for stage in ("logits", "probabilities"):
            here = capture(model.to("cpu"), inputs, stage=stage, stack=stack)
            there = capture(model.to(device), inputs, stage=stage, stack=stack)
            difference = float(np.abs(here.values - there.values).max() / np.abs(here.values).max())
            rows.append({"model": kind, "stage": stage, "difference": difference})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def stages(array: np.ndarray) -> dict[str, float]:
    """Seconds of one call by what they went into, the GPU waited for after each."""
    import torch

    from attngeo.organization.geometry.tree_distance import SliceDistances
    from attngeo.organization.questionnaire import iterate as questionnaire

    seconds: dict[str, float] = {}
    homes: list[tuple[Any, str]] = [(questionnaire, name) for name in STAGES] + [(SliceDistances, "through")]
    before = [getattr(home, name) for home, name in homes]

    def watched(name: str, work: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = work(*arguments, **options)
            torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
            return found

        return call

    try:
        for (home, name), work in zip(homes, before, strict=True):
            setattr(home, name, watched(name, work))
        took, _ = timed(array, "cuda")
    finally:
        for (home, name), work in zip(homes, before, strict=True):
            setattr(home, name, work)
    return seconds | {"rest": took - sum(seconds.values())}


def main() -> int:
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    if not there:
        print("no GPU here: nothing measured")
        return 0
    arguments = [argument for argument in sys.argv[1:] if argument != "--cpu"]
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report["numba"] = dispatch.numba_kernels() is not None
    try:
        import triton

        report["triton"] = triton.__version__
    except ImportError:
        report["triton"] = None
    report["checks"] = same_trees()
    report["captured"] = same_capture("cuda")
    threads.thread_count = lambda: 2  # type: ignore[assignment]
    torch.set_num_threads(2)
    organize(planted((24, 20, 12))[0].astype(np.float32))  # compiles for float32 what the checks did for float64
    for shape in (SMALL, LARGE):
        array = planted(shape)[0].astype(np.float32)
        runs = [timed(array, "cuda") for _ in range(4)][1:]  # the first compiles
        row: dict[str, Any] = {"gpu seconds": statistics.median(took for took, _ in runs), "stages": stages(array)}
        row["gpu gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
        if shape == SMALL or "--cpu" in sys.argv:
            took, found = timed(array, None)
            row |= {"cpu seconds, 2 threads": took, "ratio": took / row["gpu seconds"]}
            report["checks"].append({"input": str(shape), "same trees": found.trees == runs[0][1].trees})
        report[str(shape)] = row
        print(shape, json.dumps(row), flush=True)
    if arguments:
        Path(arguments[0]).mkdir(parents=True, exist_ok=True)
        (Path(arguments[0]) / "organization_gpu.json").write_text(json.dumps(report, indent=1))
    fast = report[str(LARGE)].get("ratio", TARGET) >= TARGET
    same = all(check["same trees"] for check in report["checks"])
    return 0 if fast and same and all(row["difference"] < 1e-5 for row in report["captured"]) else 1


if __name__ == "__main__":
    sys.exit(main())
