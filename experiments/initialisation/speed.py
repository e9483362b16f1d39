"""Measure how fast the pre-training loop runs, relative to the matrix products of the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attngeo.training.data.tokens import open_tokens
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.batches import Batches, Rows
from attngeo.training.pretraining.engine import Engine, process_group
from attngeo.training.pretraining.pretrain import build_model, build_objective
from experiments.initialisation.grid import Cell

WARM_UP = 10  # steps before the first stretch
STRETCHES = 5  # timed stretches; the median counts
_EXPECTED_RATES = {"4x256": 250, "12x768": 23, "24x1024": 7}  # steps/s, from which the length of a stretch is chosen


# The settings of each architecture, by the name that the command line gives it.
ARCHITECTURES: dict[str, dict[str, str]] = {
    "bert": {},
    "pre-norm-bert": {"norm": "pre"},
    "modernbert": {"architecture": "modernbert"},
    "llama": {"architecture": "llama", "objective": "causal"},
}


def measure_architectures(
    tokens: Path, names: Sequence[str], sizes: Sequence[str], seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the speed of each architecture at each size, in stretches of about `seconds` seconds.

    tokens: folder of plain token files
    """
    return [
        measure(tokens, name, size, max(5, round(seconds * _EXPECTED_RATES.get(size, 20))), say)
        for name in names
        for size in sizes
    ]


def matmul_rate(device: torch.device, n: int = 8192) -> float:
    """Return the FLOP/s of a product of two random n × n matrices in bf16, mean of 20."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device, 20)


def step_flops(model: Model, rows: int, predicted: int) -> float:
    """Return the floating-point operations of one training step.

    6·parameters·tokens + 12·layers·d·length·tokens for the layers, and 6·parameters·predicted for the output head,
    which is computed at the predicted positions only. Parameters are those of matrices.
    """

    def entries(weights: Iterable[Tensor | None]) -> int:
        return sum(weight.numel() for weight in weights if weight is not None and weight.dim() == 2)

    shape, tokens = model.shape, rows * model.shape.length
    layers = sum(map(entries, model.layer_weights))
    head = entries((*model.head_weights, *model.output_weights))
    attention = 12.0 * shape.layers * shape.hidden * shape.length
    return float((6.0 * layers + attention) * tokens + 6.0 * head * predicted)


def measure(
    tokens: Path,
    name: str,
    size: str,
    steps: int,
    say: Callable[[str], None],
    **settings: Any,
) -> dict[str, Any]:
    """Return the steps per second of an architecture: the median of five stretches of `steps` steps.

    The time includes the preparation of the batches.
    settings: of the config, in place of the usual ones
    """
    opened, processes = open_tokens(tokens), process_group()
    device = processes.device
    matmul, machine = None, device.type
    if device.type == "cuda":
        matmul, machine = matmul_rate(device), torch.cuda.get_device_name()
        say(f"{machine}: bf16 matmul {matmul / 1e12:.0f} TFLOP/s")
    settings = ARCHITECTURES[name] | settings
    task = settings.pop("objective", "masked")
    config = Cell("baseline", 5e-4, 0, 9_500, size, task).config("", str(tokens), **settings)
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
    spread = max(rates) - min(rates)
    flops = rate * step_flops(model, config.batch, objective.predicted(config.length) * config.batch)
    share = "" if matmul is None else f", {flops / matmul:.1%} of the matmul rate"
    say(f"{name} {task} {size}: {rate:.1f} steps/s (spread {spread:.1f}), {flops / 1e12:.0f} TFLOP/s{share}; "
        f"ready after {ready:.1f} s; loss {float(loss):.3f} at step {step}")  # fmt: skip
    return {"architecture": name, "objective": task, "size": size, "steps_per_second": rate, "spread": spread,
            "flops": flops, "ready": ready, "loss": float(loss), "device": machine, "torch": torch.__version__,
            "matmul_flops": matmul}  # fmt: skip


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
