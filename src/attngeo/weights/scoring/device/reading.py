"""Layers of a checkpoint as float64 tensors on a device; stored bytes are copied there and converted there."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError, first_line
from attngeo.io.threads import result_of
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers
from attngeo.weights.sources.byte_checkpoint import ByteCheckpoint
from attngeo.weights.sources.checkpoint import Checkpoint, ReadRequest

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device
    from torch.cuda import Stream

READERS = 6  # layers read at a time from a local file
AHEAD = 16  # layers that are read, or waiting to be read, before they are asked for
CHUNK = 2**23  # bytes read at a time: page-locked memory takes long to get, and these few megabytes are used again


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


def read_on_device(layers: Layers, device: Device) -> Generator[Layer, None, None]:
    """Yield the layers in order; several are read ahead where the checkpoint is in local files."""
    checkpoint = layers.checkpoint
    checkpoint.plan_reads([request for layer in layers.unread for request in layer.requests])
    several = isinstance(checkpoint, ByteCheckpoint) and not checkpoint.remote
    with ThreadPoolExecutor(READERS if several else 1, "attngeo-read") as pool:
        pending: deque[Future[dict[ReadRequest, Tensor]]] = deque()
        upcoming = iter(layers.unread)
        try:
            for layer in layers.unread:
                while len(pending) < (AHEAD if several else 2) and (later := next(upcoming, None)) is not None:
                    pending.append(pool.submit(_read, checkpoint, later, device))
                yield layer.read(_take(result_of(pending.popleft())))
        except BaseException:
            checkpoint.stop()  # the pool waits for what is being read
            raise
        finally:
            for future in pending:
                future.cancel()


def _read(checkpoint: Checkpoint, layer: Layer, device: Device) -> dict[ReadRequest, Tensor]:
    """Return the tensors of one layer on the device, in the precision of the file where that can be.

    They are copied on a stream of its own, and have arrived at the end: the device computes meanwhile.
    """
    import torch

    with torch.cuda.stream(_copying(device)) if device.type == "cuda" else nullcontext():
        return {request: _read_one(checkpoint, request, device) for request in layer.requests}


@cache
def _copying(device: Device) -> Stream:
    """Return the stream on which weights are copied: one for all threads, so that memory on the device is reused."""
    import torch

    return torch.cuda.Stream(device, priority=-1)


def _read_one(checkpoint: Checkpoint, request: ReadRequest, device: Device) -> Tensor:
    """Return a tensor on the device, checked to be finite."""
    import torch

    stored = checkpoint.stored(request) if isinstance(checkpoint, ByteCheckpoint) else None
    if stored is None:
        return torch.from_numpy(checkpoint.read(request)).to(device)
    data = torch.empty(stored.size, dtype=torch.uint8, device=device)
    for start in range(0, stored.size, CHUNK):
        # Page-locked memory is copied without waiting; torch uses it again only after it has been copied.
        size = min(CHUNK, stored.size - start)
        chunk = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        stored.fill(chunk.numpy().data, start)
        data[start : start + size].copy_(chunk, non_blocking=True)
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    values = data.view(types[stored.dtype]).view(stored.shape)
    # A sum of finite float32 weights does not overflow in float64. Asking for it waits until all is copied.
    if not bool(values.sum(dtype=torch.float64).isfinite()):
        checkpoint.read(request)  # names the tensor and the position
    return values


def _take(tensors: dict[ReadRequest, Tensor]) -> Any:
    """Return a function that returns the tensor of a request, in float64."""
    import torch

    def read(request: ReadRequest) -> Tensor:
        values = tensors.pop(request)
        if values.is_cuda:
            values.record_stream(torch.cuda.current_stream(values.device))  # not freed before it is converted
        return values.double()

    return read
