"""Layers of a checkpoint as float64 tensors on a device; stored bytes are copied there and converted there."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError, first_line
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.layer_plan import LayerPlan
from attngeo.weights.layout.layers import Layers
from attngeo.weights.sources.byte_checkpoint import ByteCheckpoint
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

READERS = 6  # layers read at a time from a local file


def open_device(name: str) -> Device:
    """Return a torch device that can compute in float64; InputError in one line where there is none of this name.

    >>> str(open_device("cpu"))
    'cpu'
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(f"device {name}: needs torch, which is not installed: pip install 'attngeo[torch]'") from error
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ImportError) as error:
        raise InputError(f"device {name}: cannot be used ({first_line(error)})") from error
    return device


def read_on_device(layers: Layers, device: Device) -> Generator[AttentionWeights, None, None]:
    """Yield the layers in order; several are read ahead where the checkpoint is in local files."""
    checkpoint = layers.checkpoint
    checkpoint.plan_reads([request for plan in layers.plans for request in plan.requests])
    several = isinstance(checkpoint, ByteCheckpoint) and not checkpoint.remote
    with ThreadPoolExecutor(READERS if several else 1, "attngeo-read") as pool:
        pending: deque[tuple[LayerPlan, Future[dict[ReadRequest, Tensor]]]] = deque()
        upcoming = iter(layers.plans)
        try:
            for plan in layers.plans:
                while len(pending) < (READERS if several else 2) and (later := next(upcoming, None)) is not None:
                    pending.append((later, pool.submit(_read, checkpoint, later, device)))
                _, future = pending.popleft()
                yield plan.weights(_take(checkpoint, future.result()))
        finally:
            for _, future in pending:
                future.cancel()


def _read(checkpoint: Checkpoint, plan: LayerPlan, device: Device) -> dict[ReadRequest, Tensor]:
    """Return the tensors of one layer on the device, in the precision of the file where that can be."""
    return {request: _read_one(checkpoint, request, device) for request in plan.requests}


def _read_one(checkpoint: Checkpoint, request: ReadRequest, device: Device) -> Tensor:
    import torch

    stored = checkpoint.read_stored(request) if isinstance(checkpoint, ByteCheckpoint) else None
    if stored is None:
        return torch.from_numpy(checkpoint.read(request)).to(device)
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return torch.from_numpy(stored.data).to(device).view(types[stored.dtype]).view(stored.shape)


def _take(checkpoint: Checkpoint, tensors: dict[ReadRequest, Tensor]) -> Any:
    """Return a function that reads a request of one layer: the tensor in float64, checked to be finite."""

    def read(request: ReadRequest) -> Tensor:
        values = tensors.pop(request).double()
        if not bool(values.sum().isfinite()):  # a sum of finite float32 weights does not overflow in float64
            checkpoint.read(request)  # names the tensor and the position
        return values

    return read
