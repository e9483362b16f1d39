"""A checkpoint whose tensors are byte spans of files, which safetensors and GGUF files are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, Span, fill
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo
from attngeo.weights.sources.dtypes import Bytes, Codec, float_codec
from attngeo.weights.sources.quantized import apply_scale, scale_of

if TYPE_CHECKING:
    from attngeo.weights.sources.hub_ranges import RangePrefetcher

CHUNK = 1 << 19  # bytes converted at a time: stored bytes and float32 values fit into the second-level cache


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: bytes [start, stop) of `file`, and the codec that turns them into float32."""

    info: TensorInfo
    file: ByteFile
    start: int
    stop: int
    codec: Codec | None  # None if the values are packed or integers, and so cannot be read as weights
    refusal: str = ""  # then the reason, which ends the sentence "tensor … "


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of a request, to be read as they are stored."""

    tensor: StoredTensor
    spans: Sequence[tuple[int, int]]  # positions in the file, in the order of the request
    dtype: str  # "F32", "F16" or "BF16"
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(stop - start for start, stop in self.spans)

    def fill(self, view: memoryview, first: int) -> None:
        """Read the next len(view) bytes, from byte `first` of the request on."""
        done = 0
        for start, stop in self.spans:
            start += first
            first = max(0, start - stop)  # what is left to be skipped
            size = min(stop - start, len(view) - done)
            if size > 0:
                with self.tensor.file.span(start, start + size) as (fd, position):
                    fill(fd, position, view[done : done + size], self.tensor.info.file)
                done += size


class ByteCheckpoint(Checkpoint):
    """Reads only the bytes that are asked for, each once, and converts them chunk by chunk."""

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any] | None,
        stored: Mapping[str, StoredTensor],
        *,
        block: tuple[int, int] | None = None,  # rows and columns per FP8 scale, if the config gives them
    ) -> None:
        self.ref = ref
        self.config = config
        self.tensors = {name: tensor.info for name, tensor in stored.items()}
        self.remote = any(tensor.file.remote for tensor in stored.values())
        self._stored, self._block = dict(stored), block
        self._prefetcher = _prefetcher() if self.remote else None

    def read(self, request: ReadRequest) -> FloatArray:
        tensor = self._readable(request.name)
        values = self._decode(tensor, request)
        if (scale := scale_of(tensor.info, self.tensors)) is not None:
            factors = self._decode(self._readable(scale), ReadRequest(scale))
            apply_scale(values, factors, tensor.info, request.rows, self._block)
        return values

    def check_readable(self, name: str) -> None:
        self._readable(name)

    def stored(self, request: ReadRequest) -> StoredBytes | None:
        """Return what `read` would convert, as it is stored; None where that takes more than a cast to float32."""
        tensor = self._readable(request.name)
        dtype = tensor.info.dtype
        plain = dtype in ("F32", "F16", "BF16") and tensor.codec is float_codec(dtype)
        if self.remote or not plain or scale_of(tensor.info, self.tensors) is not None:
            return None
        return StoredBytes(tensor, _byte_spans(tensor, request), dtype, _shape(tensor, request))

    def plan_reads(self, requests: Sequence[ReadRequest]) -> None:
        if self._prefetcher is not None:
            self._prefetcher.plan([spans for request in requests for spans in self._spans_of(request)])

    def stop(self) -> None:
        for file in self._files():
            if file.remote:  # a local file is never waited for, and another thread may be reading it
                file.close()

    def close(self) -> None:
        for file in self._files():
            file.close()
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _files(self) -> Iterable[ByteFile]:
        return {id(tensor.file): tensor.file for tensor in self._stored.values()}.values()

    def _readable(self, name: str) -> StoredTensor:
        tensor = self._stored.get(name)
        if tensor is None:
            raise SourceError(f"{self.ref}: has no tensor {name!r}")
        if tensor.codec is None:
            raise SourceError(f"{tensor.info.file}: tensor {name!r} {tensor.refusal}")
        return tensor

    def _spans_of(self, request: ReadRequest) -> list[list[Span]]:
        """Return the byte spans of a request, followed by those of its FP8 scale if it has one."""
        tensor = self._readable(request.name)
        spans = [[(tensor.file, start, stop) for start, stop in _byte_spans(tensor, request)]]
        if (scale := scale_of(tensor.info, self.tensors)) is not None:
            spans += self._spans_of(ReadRequest(scale))
        return spans

    def _decode(self, tensor: StoredTensor, request: ReadRequest) -> FloatArray:
        """Return the values of a request before FP8 scales are applied."""
        spans = _byte_spans(tensor, request)
        if self._prefetcher is not None:
            self._prefetcher.wait_for([(tensor.file, start, stop) for start, stop in spans])
        assert tensor.codec is not None  # `_readable` raised otherwise
        out = np.empty(_shape(tensor, request), np.float32)
        flat = out.reshape(-1)
        done = 0
        for start, stop in spans:
            count = (stop - start) // tensor.codec.unit * tensor.codec.values
            _decode_span(tensor, start, stop, flat[done : done + count])
            done += count
        return out


def _prefetcher() -> RangePrefetcher:
    from attngeo.weights.sources.hub_ranges import RangePrefetcher  # late: local files need no threads and queues

    return RangePrefetcher()


def _byte_spans(tensor: StoredTensor, request: ReadRequest) -> list[tuple[int, int]]:
    """Return the positions in the file of the requested rows, in the order of the request."""
    if request.rows is None:
        return [(tensor.start, tensor.stop)]
    rows = tensor.info.shape[0] if tensor.info.shape else 0
    for start, stop in request.rows:
        if not 0 <= start <= stop <= rows:
            shape = list(tensor.info.shape)
            raise SourceError(
                f"{tensor.info.file}: tensor {request.name!r} has shape {shape}, rows {start}:{stop} expected"
            )
    step = (tensor.stop - tensor.start) // rows if rows else 0
    return [(tensor.start + start * step, tensor.start + stop * step) for start, stop in request.rows]


def _shape(tensor: StoredTensor, request: ReadRequest) -> tuple[int, ...]:
    """Return the shape of the requested rows."""
    shape = tensor.info.shape
    return shape if request.rows is None else (sum(stop - start for start, stop in request.rows), *shape[1:])


def _decode_span(tensor: StoredTensor, start: int, stop: int, out: FloatArray) -> None:
    """Fill `out` [n] from bytes [start, stop), and check each chunk for finite values while it is in the cache."""
    codec = tensor.codec
    assert codec is not None
    step = max(CHUNK // codec.unit, 1) * codec.unit
    scratch: Bytes = np.empty(0 if codec.plain else min(step, stop - start), np.uint8)
    with tensor.file.span(start, stop) as (fd, position):
        for offset in range(0, stop - start, step):
            size = min(step, stop - start - offset)
            first = offset // codec.unit * codec.values
            part = out[first : first + size // codec.unit * codec.values]
            raw: Bytes = part.view(np.uint8) if codec.plain else scratch[:size]
            fill(fd, position + offset, raw.data, tensor.info.file)
            if not codec.plain:
                codec.decode(raw, part)
            if not codec.finite(raw, part):
                bad = int(np.flatnonzero(~np.isfinite(part))[0])
                before = (start - tensor.start) // codec.unit * codec.values + first
                raise nonfinite_error(tensor.info, before + bad, float(part[bad]))


def nonfinite_error(info: TensorInfo, position: int, value: float) -> SourceError:
    """Return the error for a NaN or an infinity at the flat `position` of a tensor."""
    index = [int(i) for i in np.unravel_index(position, info.shape)] if math.prod(info.shape) else []
    return SourceError(f"{info.file}: tensor {info.name!r} holds {value} at {index}, expected finite weights")
