"""A job of two processes that train models together under a Monitor, and the same training in one process.

Run as a script with a folder as its argument, it writes the records of each case and the number of collectives into
that folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from attngeo.training.monitoring.monitor import Monitor
from tests.training.monitoring.record_checks import random_tokens
from tests.weights.tiny_models import bert, gpt2, llama

WORLD = 2


def fully_sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in LAYERS[type(model).__name__](model):
        fully_shard(layer)
    return fully_shard(model)


LAYERS: dict[str, Callable[[Any], Any]] = {
    "BertForMaskedLM": lambda model: model.bert.encoder.layer,
    "LlamaForCausalLM": lambda model: model.model.layers,
    "GPT2LMHeadModel": lambda model: model.transformer.h,
}
WRAPPERS = {"ddp": nn.parallel.DistributedDataParallel, "fsdp2": fully_sharded}
MODELS = {"bert": bert, "llama": llama, "gpt2": gpt2}
CASES = [("bert", "ddp"), ("bert", "fsdp2"), ("llama", "fsdp2"), ("gpt2", "fsdp2")]


def train_all_cases(rank: int, folder: str) -> None:
    """Train every case in one of the two processes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    # Both processes find each other through a file: a free port could be taken by another program before it is used.
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    try:
        collectives = {f"{name} {wrapper}": train_case(rank, folder, name, wrapper) for name, wrapper in CASES}
        if rank == 0:
            (Path(folder) / "collectives.json").write_text(json.dumps(collectives))
        dist.barrier()  # neither process leaves while the other still needs it
    finally:
        dist.destroy_process_group()
    # FSDP 2 keeps the process group, so gloo's threads are still running. A thread that releases a tensor while the
    # interpreter shuts down aborts the process ("terminate called without an active exception"): on a loaded machine
    # this happened now and then. So the process ends without that shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def train_case(rank: int, folder: str, name: str, wrapper: str) -> int:
    """Train one model for two steps; return the number of collectives of the first measurement."""
    monitor = Monitor(Path(folder) / f"{name} {wrapper}.jsonl", every=1)
    return two_steps(WRAPPERS[wrapper](MODELS[name]()), monitor, slice(rank, None, WORLD))


def records_of_one_process(name: str) -> list[dict[str, Any]]:
    """Return the records of the same two steps in one process."""
    monitor = Monitor(every=1)
    two_steps(MODELS[name](), monitor, slice(None))
    return monitor.records


def two_steps(model: Any, monitor: Monitor, share: slice) -> int:
    """Train on this share of the rows; return the number of collectives of the first measurement."""
    from torch.distributed.tensor.debug import CommDebugMode

    ids = random_tokens(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with CommDebugMode() as collectives:
        monitor(0, model)
    for step in range(2):
        if step:  # logits are measured here only, because they need a pass through the whole model
            monitor(step, model, {"input_ids": ids})
        optimizer.zero_grad()
        part = ids[share].contiguous()
        model(input_ids=part, labels=part).loss.backward()
        optimizer.step()
    return sum(collectives.get_comm_counts().values())


if __name__ == "__main__":
    # Forked, so that only this process imports torch and transformers.
    torch.multiprocessing.start_processes(train_all_cases, (sys.argv[1],), WORLD, start_method="fork")
