"""Two processes that train together: what one alone records, and which weights were put together for it."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from attngeo.dynamics.monitoring.monitor import Monitor
from tests.dynamics.monitoring.monitored import tokens
from tests.weights.tiny_models import bert, gpt2, llama


def data_parallel(model: Any) -> Any:
    return nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in layers(model):
        fully_shard(layer)
    return fully_shard(model)


def flat_sharded(model: Any, original: bool) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(layers(model)[0])})
    return FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=original, device_id=torch.device("cpu")
    )


def layers(model: Any) -> list[Any]:
    part = getattr(model, "bert", None) or getattr(model, "transformer", None) or model.model
    return list(part.encoder.layer if hasattr(part, "encoder") else part.h if hasattr(part, "h") else part.layers)


WAYS = {
    "ddp": data_parallel,
    "fsdp2": fully_sharded,
    "fsdp1": lambda model: flat_sharded(model, True),
    "fsdp1 flat": lambda model: flat_sharded(model, False),
}
MODELS = {"bert": bert, "llama": llama, "gpt2": gpt2}
CASES = [
    ("bert", "ddp"),
    ("bert", "fsdp2"),
    ("bert", "fsdp1"),
    ("llama", "fsdp2"),
    ("llama", "fsdp1 flat"),
    ("gpt2", "fsdp2"),
]


def watch(rank: int, world: int, port: str, folder: str) -> None:
    warnings.simplefilter("ignore")  # FSDP1 warns of its age
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from torch.distributed.tensor.debug import CommDebugMode

    ids = tokens(4)
    found = {}
    for name, way in CASES:
        model = WAYS[way](MODELS[name]())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = Monitor(Path(folder) / f"{name} {way}.jsonl", every=1)
        for step in range(2):
            with CommDebugMode() as seen:
                # logits only at the end: they need a pass through all of the model
                monitor(step, model, {"input_ids": ids} if step and "1" not in way else None)
            if not step:
                found[f"{name} {way}"] = sum(seen.get_comm_counts().values())
            optimizer.zero_grad()
            part = ids[rank::world].contiguous()
            model(input_ids=part, labels=part).loss.backward()
            optimizer.step()
    if rank == 0:
        (Path(folder) / "collectives.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def alone(name: str) -> list[dict[str, Any]]:
    """The same two measurements in one process."""
    model, monitor, ids = MODELS[name](), Monitor(every=1), tokens(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        monitor(step, model, {"input_ids": ids} if step else None)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return monitor.records


if __name__ == "__main__":
    torch.multiprocessing.spawn(watch, (2, sys.argv[2], sys.argv[1]), 2)
