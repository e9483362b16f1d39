"""The cost of a Monitor on a GPU: `PYTHONPATH=src:. python3 bench/monitor_gpu.py [FOLDER]` takes about a minute.

A 12×768 model is trained with 32,768 tokens per step, by the loop of `attngeo pretrain` ("lean") and by plain bf16
loops over transformers' BertForMaskedLM ("plain") and LlamaForCausalLM ("rotary", 12 query and 4 key heads). Timed are
a step and a measurement (figures of all layers and heads, logits on 8 rows, the line of JSON); their ratio gives the
share of the training time at one measurement per 100 steps. Needs torch and transformers, but neither polars nor typer.
Writes FOLDER/monitor_gpu.json. `--tiny` runs small shapes, also on a CPU.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attngeo.io.files import write_file

EVERY, TARGET = 100, 0.01
TINY = "--tiny" in sys.argv
LAYERS, HIDDEN, HEADS, KEY_HEADS = (2, 64, 2, 1) if TINY else (12, 768, 12, 4)
ROWS, LENGTH, VOCABULARY = (4, 16, 512) if TINY else (256, 128, 16_384)
STRETCH, REPEATS = (3, 2) if TINY else (40, 3)  # steps per stretch; number of stretches with and without a measurement


def lean(device: Any) -> tuple[Any, Callable[[int], Any], Any]:
    """Return model, step function and batch of `attngeo pretrain`: compiled layers, fused AdamW, one CUDA graph."""
    import torch

    from attngeo.training.pretraining.architectures import Bert, Shape
    from attngeo.training.pretraining.batches import Batch
    from attngeo.training.pretraining.config import PretrainConfig
    from attngeo.training.pretraining.engine import Engine, ProcessGroup

    on_gpu = device.type == "cuda"
    kind = torch.bfloat16 if on_gpu else torch.float32
    model = Bert(Shape(LAYERS, HIDDEN, HEADS, 4 * HIDDEN, VOCABULARY, LENGTH, False), kind, compiled=on_gpu)
    model.initialise(0)
    model.to(device)
    engine = Engine(model, PretrainConfig(out="", batch=ROWS, length=LENGTH), ProcessGroup(device))
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), device=device)
    at = torch.randperm(ids.numel(), device=device)[: int(0.15 * ids.numel())].sort().values
    batch = Batch(ids, at, ids.flatten()[at])
    return model, lambda step: engine.step(batch, step), ids


def plain(device: Any) -> tuple[Any, Callable[[int], Any], Any]:
    """Return model, step function and batch of a plain loop over BertForMaskedLM with bf16 autocast."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN, max_position_embeddings=max(LENGTH, 16),
    )  # fmt: skip
    return transformers_loop(BertForMaskedLM(config), device, 0.15)


def rotary(device: Any) -> tuple[Any, Callable[[int], Any], Any]:
    """Return model, step function and batch of a plain loop over LlamaForCausalLM with bf16 autocast."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, intermediate_size=8 * HIDDEN // 3, max_position_embeddings=max(LENGTH, 16),
    )  # fmt: skip
    return transformers_loop(LlamaForCausalLM(config), device, 1.0)


def transformers_loop(model: Any, device: Any, predicted: float) -> tuple[Any, Callable[[int], Any], Any]:
    """Return model, step function and batch of a plain loop with bf16 autocast.

    predicted: share of the tokens that have a label
    """
    import torch

    on_gpu = device.type == "cuda"
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu or None)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > predicted, -100)

    def step(_: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()

    return model, step, {"input_ids": ids}


def cost(make: Callable[[Any], Any], device: Any, folder: Path) -> dict[str, Any]:
    """Return the milliseconds of a step and of a measurement, alone and between steps that are already queued."""
    import torch

    from attngeo.training.monitoring.monitor import Monitor

    def synchronised_time() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    torch.manual_seed(0)
    model, step, batch = make(device)
    monitor = Monitor(folder / f"{make.__name__}.jsonl", every=1)
    for number in range(5):
        step(number)
        monitor(number, model, batch)
    measurements: list[float] = []
    steps: list[float] = []
    monitored: list[float] = []
    for number in range(5, 15):
        step(number)
        began = synchronised_time()
        monitor(number, model, batch)
        measurements.append(synchronised_time() - began)
    for number in range(15, 15 + REPEATS):
        for times, measured in ((steps, False), (monitored, True)):
            began = synchronised_time()
            for within in range(STRETCH):
                step(within)
                if measured and within == STRETCH // 2:
                    monitor(number, model, batch)
            times.append(synchronised_time() - began)
    row = monitor.records[-1]
    assert len(row["max_logit"]) == LAYERS and len(row["head_symmetry"][0]) == HEADS and "head_dominance" in row
    assert ("head_symmetry_rope" in row) == (make is rotary)
    per_step = statistics.median(steps) / STRETCH
    one, among = statistics.median(measurements), statistics.median(monitored) - statistics.median(steps)
    return {
        "ms a step": 1e3 * per_step,
        "ms a measurement": 1e3 * one,
        "ms a measurement, between steps": 1e3 * among,
        "ms, spread of stretches without": 1e3 * (max(steps) - min(steps)),
        f"share at every {EVERY}": max(one, among) / (EVERY * per_step),
    }


def main() -> int:
    try:
        import torch
    except ImportError:
        print("torch is not installed: nothing is measured")
        return 0
    if not torch.cuda.is_available() and not TINY:
        print("there is no GPU: nothing is measured")
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": f"{LAYERS}x{HIDDEN}",
        "tokens a step": ROWS * LENGTH,
    }
    with tempfile.TemporaryDirectory() as folder:
        for make in (lean, plain, rotary):
            report[make.__name__] = cost(make, device, Path(folder))
            print(make.__name__, json.dumps(report[make.__name__]), flush=True)
    if folders := [argument for argument in sys.argv[1:] if argument != "--tiny"]:
        Path(folders[0]).mkdir(parents=True, exist_ok=True)
        write_file(Path(folders[0]) / "monitor_gpu.json", json.dumps(report, indent=1).encode())
    shares = [report[name][f"share at every {EVERY}"] for name in ("lean", "plain", "rotary")]
    return 0 if TINY or max(shares) < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
