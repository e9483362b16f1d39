"""A job of two processes that train models together under a Monitor, and the same training in one process.

Run as a script with a folder as its argument, it writes the records of each case and the number of collectives into
that folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from attngeo.training.monitoring.monitor import Monitor
from tests.training.monitoring.record_checks import random_tokens
from tests.weights.tiny_models import bert, gpt2, llama

WORLD = 2


def data_parallel(model: Any) -> Any:
    return nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in transformer_layers(model):
        fully_shard(layer)
    return fully_shard(model)


def transformer_layers(model: Any) -> list[Any]:
    part = getattr(model, "bert", None) or getattr(model, "transformer", None) or model.model
    return list(part.encoder.layer if hasattr(part, "encoder") else part.h if hasattr(part, "h") else part.layers)


WRAPPERS = {
    "ddp": data_parallel,
    "fsdp2": fully_sharded,
}
MODELS = {"bert": bert, "llama": llama, "gpt2": gpt2}
CASES = [
    ("bert", "ddp"),
    ("bert", "fsdp2"),
    ("llama", "fsdp2"),
    ("gpt2", "fsdp2"),
]


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
    from torch.distributed.tensor.debug import CommDebugMode

    ids = random_tokens(4)
    model = WRAPPERS[wrapper](MODELS[name]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(Path(folder) / f"{name} {wrapper}.jsonl", every=1)
    counts = []
    for step in range(2):
        with CommDebugMode() as collectives:
            # Logits are measured at the second step only, because they need a pass through the whole model.
            monitor(step, model, {"input_ids": ids} if step else None)
        counts.append(sum(collectives.get_comm_counts().values()))
        optimizer.zero_grad()
        part = ids[rank::WORLD].contiguous()
        model(input_ids=part, labels=part).loss.backward()
        optimizer.step()
    return counts[0]


def records_of_one_process(name: str) -> list[dict[str, Any]]:
    """Return the records of the same two steps in one process."""
    model, monitor, ids = MODELS[name](), Monitor(every=1), random_tokens(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        monitor(step, model, {"input_ids": ids} if step else None)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return monitor.records


if __name__ == "__main__":
    torch.multiprocessing.spawn(train_all_cases, (sys.argv[1],), WORLD)
