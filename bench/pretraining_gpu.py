"""How fast the harness trains on this device, against what the device itself does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from attngeo.dynamics.data.tokens import open_tokens
from attngeo.dynamics.pretraining.batches import Batches, Rows
from attngeo.dynamics.pretraining.engine import Engine
from attngeo.dynamics.pretraining.pretrain import build, objective_of
from attngeo.dynamics.pretraining.processes import team
from experiments.initialisation.grid import Cell


def matmul_rate(device: torch.device, n: int = 8192) -> float:
    """FLOP/s of a large bf16 product of random matrices, mean of 20."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device, 20)


def copy_rate(device: torch.device, size: int = 1 << 32) -> float:
    """Bytes read and written a second by a large copy on the device."""
    a = torch.empty(size, device=device, dtype=torch.uint8).random_()
    b = torch.empty_like(a)
    return 2 * size / _seconds(lambda: b.copy_(a), device, 20)


def _seconds(work: Callable[[], Any], device: torch.device, times: int) -> float:
    for _ in range(3):
        work()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    tokens: Path,
    sizes: Sequence[str],
    objectives: Sequence[str],
    steps: int,
    profile: bool,
    say: Callable[[str], None],
    **settings: Any,
) -> list[dict[str, Any]]:
    """Steps a second for each size and objective: the median of five stretches of `steps` steps, data included."""
    opened, mine = open_tokens(tokens), team()
    matmul = None
    if mine.device.type == "cuda":
        matmul = matmul_rate(mine.device)
        say(f"{torch.cuda.get_device_name()}: bf16 matmul {matmul / 1e12:.0f} TFLOP/s, "
            f"copy {copy_rate(mine.device) / 1e12:.2f} TB/s")  # fmt: skip
    found = []
    for objective in objectives:
        for size in sizes:
            config = Cell("baseline", 5e-4, 0, 9_500, size, objective).config("", str(tokens), **settings)
            began = time.perf_counter()
            model, goal = build(config, opened, mine), objective_of(config, opened)
            rows = Rows(opened, "train", config.length, mine.device, config.batch)
            batches = Batches(rows, goal, batch=config.batch, seed=0)
            engine = Engine(model, config, mine)
            for step in range(10):
                engine.step(batches.at(step), step)
            _wait(mine.device)
            ready = time.perf_counter() - began
            rates = []
            step = 10
            for _ in range(5):
                began = time.perf_counter()
                for _ in range(steps):
                    loss = engine.step(batches.at(step), step)
                    step += 1
                _wait(mine.device)
                rates.append(steps / (time.perf_counter() - began))
            rate = sorted(rates)[2]
            work = model.config.flops(config.batch, goal.predicted(config.length) * config.batch)
            row = {"objective": objective, "size": size, "steps_per_second": rate, "spread": max(rates) - min(rates),
                   "flops": rate * work, "ready": ready, "loss": float(loss)}  # fmt: skip
            share = "" if matmul is None else f", {rate * work / matmul:.1%} of the matmul rate"
            say(f"{objective} {size}: {rate:.1f} steps/s (spread {row['spread']:.1f}), {rate * work / 1e12:.0f} TFLOP/s"
                f"{share}; ready after {ready:.1f} s; loss {row['loss']:.3f} at step {step}")  # fmt: skip
            found.append(row)
            if profile:
                say(_profile(engine, batches, step))
            del engine, model, batches, rows
    return found


def _profile(engine: Engine, batches: Batches, step: int) -> str:
    from torch.profiler import ProfilerActivity, profile

    on_gpu = engine.team.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for number in range(step, step + 20):
            engine.step(batches.at(number), number)
        _wait(engine.team.device)
    lines = []
    for row in seen.key_averages():
        micros = (row.device_time_total if on_gpu else row.self_cpu_time_total) / 20
        lines.append((micros, f"{micros:9.1f} µs/step  ×{row.count / 20:6.1f}  {row.key[:110]}"))
    total = sum(micros for micros, _ in lines)
    return "\n".join([f"{total:9.1f} µs/step in all", *(line for _, line in sorted(lines, reverse=True)[:32])])
