"""A checkpoint whose tensors lie at known byte spans of files; safetensors and GGUF both become one of these."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, Span, fill
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo
from attngeo.weights.sources.dtypes import Bytes, Codec
from attngeo.weights.sources.quantized import apply_scale, scale_of

if TYPE_CHECKING:
    from attngeo.weights.sources.hub_ranges import ReadAhead

CHUNK = 1 << 19  # bytes converted at a time: raw and float32 together stay in the second-level cache


@dataclass(frozen=True)
class StoredTensor:
    """One stored tensor: its bytes [start, stop) of `file` and how to turn them into float32."""

    info: TensorInfo
    file: ByteFile
    start: int
    stop: int
    codec: Codec | None  # None: packed or integer, not readable as weights
    refusal: str = ""  # then: why


class ByteCheckpoint(Checkpoint):
    """Reads only the bytes asked for, each once, converting chunk by chunk."""

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any] | None,
        stored_tensors: Mapping[str, StoredTensor],
        *,
        block: tuple[int, int] | None = None,  # of FP8 scales, where the config gives it
    ) -> None:
        self.ref = ref
        self.config = config
        self.tensors = {name: stored.info for name, stored in stored_tensors.items()}
        self.remote = any(stored.file.remote for stored in stored_tensors.values())
        self._slots, self._block = dict(stored_tensors), block
        self._ahead = _read_ahead() if self.remote else None

    def read(self, request: ReadRequest) -> FloatArray:
        stored = self._stored(request.name)
        values = self._decode(stored, request)
        if (scale := scale_of(stored.info, self.tensors)) is not None:
            apply_scale(
                values, self._decode(self._stored(scale), ReadRequest(scale)), stored.info, request.rows, self._block
            )
        return values

    def plan_reads(self, requests: Sequence[ReadRequest]) -> None:
        if self._ahead is not None:
            self._ahead.plan([spans for request in requests for spans in self._spans_of(request)])

    def close(self) -> None:
        for file in {id(stored.file): stored.file for stored in self._slots.values()}.values():
            file.close()
        if self._ahead is not None:
            self._ahead.close()

    def _stored(self, name: str) -> StoredTensor:
        stored = self._slots.get(name)
        if stored is None:
            raise SourceError(f"{self.ref}: no tensor {name!r}")
        if stored.codec is None:
            raise SourceError(f"{stored.info.file}: tensor {name!r} {stored.refusal}")
        return stored

    def _spans_of(self, request: ReadRequest) -> list[list[Span]]:
        """Byte spans of a request, and of its FP8 scale where it has one."""
        stored = self._stored(request.name)
        spans = [[(stored.file, start, stop) for start, stop in _byte_spans(stored, request)]]
        if (scale := scale_of(stored.info, self.tensors)) is not None:
            spans += self._spans_of(ReadRequest(scale))
        return spans

    def _decode(self, stored: StoredTensor, request: ReadRequest) -> FloatArray:
        spans = _byte_spans(stored, request)
        if self._ahead is not None:
            self._ahead.need([(stored.file, start, stop) for start, stop in spans])
        assert stored.codec is not None  # _stored refused it otherwise
        shape = stored.info.shape
        if request.rows is not None:
            shape = (sum(stop - start for start, stop in request.rows), *shape[1:])
        out = np.empty(shape, np.float32)
        flat = out.reshape(-1)
        done = 0
        for start, stop in spans:
            count = (stop - start) // stored.codec.unit * stored.codec.values
            _decode_span(stored, start, stop, flat[done : done + count])
            done += count
        return out


def _read_ahead() -> ReadAhead:
    from attngeo.weights.sources.hub_ranges import ReadAhead  # late: threads and queues are of no use to a local file

    return ReadAhead()


def _byte_spans(stored: StoredTensor, request: ReadRequest) -> list[tuple[int, int]]:
    """Byte positions in the file of the rows asked for, in the order asked for."""
    if request.rows is None:
        return [(stored.start, stored.stop)]
    rows = stored.info.shape[0] if stored.info.shape else 0
    for start, stop in request.rows:
        if not 0 <= start <= stop <= rows:
            shape = list(stored.info.shape)
            raise SourceError(
                f"{stored.info.file}: tensor {request.name!r} has shape {shape}, rows {start}:{stop} expected"
            )
    step = (stored.stop - stored.start) // rows if rows else 0
    return [(stored.start + start * step, stored.start + stop * step) for start, stop in request.rows]


def _decode_span(stored: StoredTensor, start: int, stop: int, out: FloatArray) -> None:
    """Fill `out` [n] from bytes [start, stop), checking every chunk while it is still in the cache."""
    codec = stored.codec
    assert codec is not None
    step = max(CHUNK // codec.unit, 1) * codec.unit
    scratch: Bytes = np.empty(0 if codec.plain else min(step, stop - start), np.uint8)
    with stored.file.span(start, stop) as (fd, position):
        for offset in range(0, stop - start, step):
            size = min(step, stop - start - offset)
            first = offset // codec.unit * codec.values
            part = out[first : first + size // codec.unit * codec.values]
            raw: Bytes = part.view(np.uint8) if codec.plain else scratch[:size]
            fill(fd, position + offset, raw.data, stored.info.file)
            if not codec.plain:
                codec.decode(raw, part)
            if not codec.finite(raw, part):
                bad = int(np.flatnonzero(~np.isfinite(part))[0])
                before = (start - stored.start) // codec.unit * codec.values + first
                raise nonfinite(stored.info, before + bad, float(part[bad]))


def nonfinite(info: TensorInfo, position: int, value: float) -> SourceError:
    """The error for a NaN or Inf at flat `position` of a tensor."""
    index = [int(i) for i in np.unravel_index(position, info.shape)] if math.prod(info.shape) else []
    return SourceError(f"{info.file}: tensor {info.name!r} holds {value} at {index}; finite weights expected")
