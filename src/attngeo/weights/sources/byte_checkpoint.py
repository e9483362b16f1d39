"""A checkpoint whose tensors lie at known byte spans of files; safetensors and GGUF both become one of these."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import SourceError
from attngeo.weights.sources.byte_file import ByteFile, Span, fill
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, TensorInfo, Want
from attngeo.weights.sources.dtypes import Bytes, Codec
from attngeo.weights.sources.quantized import apply_scale, scale_of

if TYPE_CHECKING:
    from attngeo.weights.sources.hub_ranges import ReadAhead

CHUNK = 1 << 19  # bytes converted at a time: raw and float32 together stay in the second-level cache


@dataclass(frozen=True)
class Slot:
    """One stored tensor: its bytes [start, stop) of `file` and how to turn them into float32."""

    info: TensorInfo
    file: ByteFile
    start: int
    stop: int
    codec: Codec | None  # None: packed or integer, not readable as weights
    refusal: str = ""  # then: why


class StoredCheckpoint(Checkpoint):
    """Reads only the bytes asked for, each once, converting chunk by chunk."""

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any] | None,
        slots: Mapping[str, Slot],
        *,
        block: tuple[int, int] | None = None,  # of FP8 scales, where the config gives it
    ) -> None:
        self.ref = ref
        self.config = config
        self.tensors = {name: slot.info for name, slot in slots.items()}
        self.remote = any(slot.file.remote for slot in slots.values())
        self._slots, self._block = dict(slots), block
        self._ahead = _read_ahead() if self.remote else None

    def read(self, want: Want) -> FloatArray:
        slot = self._slot(want.name)
        values = self._decode(slot, want)
        if (scale := scale_of(slot.info, self.tensors)) is not None:
            apply_scale(values, self._decode(self._slot(scale), Want(scale)), slot.info, want.rows, self._block)
        return values

    def expect(self, wants: Sequence[Want]) -> None:
        if self._ahead is not None:
            self._ahead.plan([spans for want in wants for spans in self._spans_of(want)])

    def close(self) -> None:
        for file in {id(slot.file): slot.file for slot in self._slots.values()}.values():
            file.close()
        if self._ahead is not None:
            self._ahead.close()

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            raise SourceError(f"{self.ref}: no tensor {name!r}")
        if slot.codec is None:
            raise SourceError(f"{slot.info.file}: tensor {name!r} {slot.refusal}")
        return slot

    def _spans_of(self, want: Want) -> list[list[Span]]:
        """Byte spans of a want, and of its FP8 scale where it has one."""
        slot = self._slot(want.name)
        spans = [[(slot.file, start, stop) for start, stop in _byte_spans(slot, want)]]
        if (scale := scale_of(slot.info, self.tensors)) is not None:
            spans += self._spans_of(Want(scale))
        return spans

    def _decode(self, slot: Slot, want: Want) -> FloatArray:
        spans = _byte_spans(slot, want)
        if self._ahead is not None:
            self._ahead.need([(slot.file, start, stop) for start, stop in spans])
        assert slot.codec is not None  # _slot refused it otherwise
        shape = slot.info.shape
        if want.rows is not None:
            shape = (sum(stop - start for start, stop in want.rows), *shape[1:])
        out = np.empty(shape, np.float32)
        flat = out.reshape(-1)
        done = 0
        for start, stop in spans:
            count = (stop - start) // slot.codec.unit * slot.codec.values
            _decode_span(slot, start, stop, flat[done : done + count])
            done += count
        return out


def _read_ahead() -> ReadAhead:
    from attngeo.weights.sources.hub_ranges import ReadAhead  # late: threads and queues are of no use to a local file

    return ReadAhead()


def _byte_spans(slot: Slot, want: Want) -> list[tuple[int, int]]:
    """Byte positions in the file of the rows asked for, in the order asked for."""
    if want.rows is None:
        return [(slot.start, slot.stop)]
    rows = slot.info.shape[0] if slot.info.shape else 0
    for start, stop in want.rows:
        if not 0 <= start <= stop <= rows:
            shape = list(slot.info.shape)
            raise SourceError(f"{slot.info.file}: tensor {want.name!r} has shape {shape}, rows {start}:{stop} expected")
    step = (slot.stop - slot.start) // rows if rows else 0
    return [(slot.start + start * step, slot.start + stop * step) for start, stop in want.rows]


def _decode_span(slot: Slot, start: int, stop: int, out: FloatArray) -> None:
    """Fill `out` [n] from bytes [start, stop), checking every chunk while it is still in the cache."""
    codec = slot.codec
    assert codec is not None
    step = max(CHUNK // codec.unit, 1) * codec.unit
    scratch: Bytes = np.empty(0 if codec.plain else min(step, stop - start), np.uint8)
    with slot.file.span(start, stop) as (fd, position):
        for offset in range(0, stop - start, step):
            size = min(step, stop - start - offset)
            first = offset // codec.unit * codec.values
            part = out[first : first + size // codec.unit * codec.values]
            raw: Bytes = part.view(np.uint8) if codec.plain else scratch[:size]
            fill(fd, position + offset, raw.data, slot.info.file)
            if not codec.plain:
                codec.decode(raw, part)
            if not codec.finite(raw, part):
                bad = int(np.flatnonzero(~np.isfinite(part))[0])
                before = (start - slot.start) // codec.unit * codec.values + first
                raise nonfinite(slot.info, before + bad, float(part[bad]))


def nonfinite(info: TensorInfo, position: int, value: float) -> SourceError:
    """The error for a NaN or Inf at flat `position` of a tensor."""
    index = [int(i) for i in np.unravel_index(position, info.shape)] if math.prod(info.shape) else []
    return SourceError(f"{info.file}: tensor {info.name!r} holds {value} at {index}; finite weights expected")
