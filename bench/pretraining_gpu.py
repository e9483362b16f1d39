"""Measure how fast the pre-training loop runs, relative to the matrix products of the same device.

    python -m bench.pretraining_gpu TOKENS [--size 4x256 12x768] [--objective masked] [--steps 400] [--profile]

TOKENS is a folder of token files, packed or not (`python -m experiments.initialisation prepare`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from attngeo.dynamics.data.tokens import open_tokens
from attngeo.dynamics.pretraining.batches import Batches, Rows
from attngeo.dynamics.pretraining.build import build_model, build_objective
from attngeo.dynamics.pretraining.engine import Engine
from attngeo.dynamics.pretraining.processes import process_group
from experiments.initialisation.grid import Cell
from experiments.initialisation.packed_tokens import unpacked

WARM_UP = 10  # steps before the first stretch
STRETCHES = 5  # timed stretches; the median counts
PROFILED = 20  # steps of a profile


def matmul_rate(device: torch.device, n: int = 8192) -> float:
    """Return the FLOP/s of a product of two random n × n matrices in bf16, mean of 20."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device, 20)


def copy_rate(device: torch.device, size: int = 1 << 32) -> float:
    """Return the bytes read and written per second by a large copy on the device."""
    a = torch.empty(size, device=device, dtype=torch.uint8).random_()
    b = torch.empty_like(a)
    return 2 * size / _seconds(lambda: b.copy_(a), device, 20)


def measure(
    tokens: Path,
    sizes: Sequence[str],
    objectives: Sequence[str],
    steps: int,
    profile: bool,
    say: Callable[[str], None],
    **settings: Any,
) -> list[dict[str, Any]]:
    """Return steps per second for each size and objective: the median of five stretches of `steps` steps.

    The time includes the preparation of the batches.
    profile: also print the kernels that take most of the time
    settings: of the config, in place of the usual ones
    """
    opened, processes = open_tokens(tokens), process_group()
    device = processes.device
    matmul = None
    if device.type == "cuda":
        matmul = matmul_rate(device)
        say(f"{torch.cuda.get_device_name()}: bf16 matmul {matmul / 1e12:.0f} TFLOP/s, "
            f"copy {copy_rate(device) / 1e12:.2f} TB/s")  # fmt: skip
    measurements = []
    for objective_name in objectives:
        for size in sizes:
            config = Cell("baseline", 5e-4, 0, 9_500, size, objective_name).config("", str(tokens), **settings)
            began = time.perf_counter()
            model, objective = build_model(config, opened, device), build_objective(config, opened)
            rows = Rows(opened, "train", config.length, device, config.batch)
            batches = Batches(rows, objective, batch=config.batch, seed=0)
            engine = Engine(model, config, processes)
            for step in range(WARM_UP):
                engine.step(batches.at(step), step)
            _synchronize(device)
            ready = time.perf_counter() - began
            rates = []
            step = WARM_UP
            for _ in range(STRETCHES):
                began = time.perf_counter()
                for _ in range(steps):
                    loss = engine.step(batches.at(step), step)
                    step += 1
                _synchronize(device)
                rates.append(steps / (time.perf_counter() - began))
            rate = sorted(rates)[STRETCHES // 2]
            work = model.flops(config.batch, objective.predicted(config.length) * config.batch)
            row = {"objective": objective_name, "size": size, "steps_per_second": rate,
                   "spread": max(rates) - min(rates), "flops": rate * work, "ready": ready,
                   "loss": float(loss)}  # fmt: skip
            share = "" if matmul is None else f", {rate * work / matmul:.1%} of the matmul rate"
            say(f"{objective_name} {size}: {rate:.1f} steps/s (spread {row['spread']:.1f}), "
                f"{rate * work / 1e12:.0f} TFLOP/s{share}; ready after {ready:.1f} s; "
                f"loss {row['loss']:.3f} at step {step}")  # fmt: skip
            measurements.append(row)
            if profile:
                say(_profile(engine, batches, step))
            del engine, model, batches, rows
    return measurements


def _profile(engine: Engine, batches: Batches, step: int) -> str:
    """Return a table of the kernels that take most of the time, in microseconds per step."""
    from torch.profiler import ProfilerActivity, profile

    device = engine.processes.device
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for number in range(step, step + PROFILED):
            engine.step(batches.at(number), number)
        _synchronize(device)
    lines = []
    for row in profiler.key_averages():
        micros = (row.device_time_total if on_gpu else row.self_cpu_time_total) / PROFILED
        lines.append((micros, f"{micros:9.1f} µs/step  ×{row.count / PROFILED:6.1f}  {row.key[:110]}"))
    total = sum(micros for micros, _ in lines)
    return "\n".join([f"{total:9.1f} µs/step in all", *(line for _, line in sorted(lines, reverse=True)[:32])])


def _seconds(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Return the mean seconds of a call, after three calls that are not timed."""
    for _ in range(3):
        work()
    _synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _synchronize(device)
    return (time.perf_counter() - began) / times


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


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
