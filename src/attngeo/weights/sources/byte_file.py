"""Tensors that are byte spans of files, which those of safetensors and GGUF are: read by position, converted in chunks.

ByteFile, LocalFile   bytes of a file by position, wherever it is stored
StoredTensor          a tensor: its span of a file, and how its bytes become numbers
ByteCheckpoint        a checkpoint of such tensors
bytes_read            how many bytes this process has read
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import SourceError, reason
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo
from attngeo.weights.sources.numbers import Bytes, Codec, all_finite, read_with_scale, scale_of

if TYPE_CHECKING:
    from attngeo.weights.sources.hub_files import RangePrefetcher

CHUNK = 1 << 19  # bytes converted at a time: stored bytes and float32 values fit into the second-level cache


# ---- bytes of files


class ByteFile(ABC):
    """A file of known size whose bytes can be read by position."""

    name: str  # for error messages, as the user would recognise it
    size: int  # bytes
    remote = False  # true if a span can cost a network request

    @abstractmethod
    def read_into(self, view: memoryview, start: int) -> None:
        """Fill `view` with the bytes from `start` on."""

    @abstractmethod
    def close(self) -> None:
        """Release the file."""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop); for headers, because weights are better read into an array."""
        data = bytearray(stop - start)
        self.read_into(memoryview(data), start)
        return bytes(data)


Span = tuple[ByteFile, int, int]  # bytes [start, stop) of a file


_bytes_read = 0
_lock = threading.Lock()


def bytes_read() -> int:
    """Return how many bytes this process has read of files so far; those of the hub count once they are cached."""
    return _bytes_read


class LocalFile(ByteFile):
    """A file on this machine, opened once; positional reads let several threads share it."""

    _fd = -1

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be opened ({reason(error)})") from error
        self.size = os.fstat(self._fd).st_size

    def read_into(self, view: memoryview, start: int) -> None:
        global _bytes_read
        done = 0
        while done < len(view):
            try:
                count = _pread(self._fd, view[done:], start + done)
            except OSError as error:
                raise SourceError(f"{self.name}: cannot be read ({error.strerror})") from error
            if count == 0:
                raise SourceError(f"{self.name}: ends at byte {start + done}, within what is read; it is incomplete")
            done += count
        with _lock:
            _bytes_read += done

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def _pread(fd: int, view: memoryview, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], position)
    with _lock:  # Windows has no positional read, so that one thread reads at a time
        os.lseek(fd, position, os.SEEK_SET)
        data = os.read(fd, len(view))
    view[: len(data)] = data
    return len(data)


# ---- tensors in files


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: bytes [start, stop) of `file`, and the codec that turns them into float32."""

    info: TensorInfo
    file: ByteFile
    start: int
    stop: int
    codec: Codec | None  # None if the values are packed or integers, and so cannot be read as weights
    refusal: str = ""  # then the reason, which ends the sentence "tensor … "

    def spans(self, request: ReadRequest) -> list[tuple[int, int]]:
        """Return the positions in the file of the requested rows, in the order of the request."""
        if request.rows is None:
            return [(self.start, self.stop)]
        step = (self.stop - self.start) // self.info.shape[0]
        return [(self.start + start * step, self.start + stop * step) for start, stop in request.rows]


class ByteCheckpoint(Checkpoint):
    """Reads only the bytes that are asked for, each once, and converts them chunk by chunk."""

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any] | None,
        stored: Mapping[str, StoredTensor],
    ) -> None:
        self.ref = ref
        self.config = config
        self.tensors = {name: tensor.info for name, tensor in stored.items()}
        self._stored = dict(stored)
        self._files = {id(tensor.file): tensor.file for tensor in stored.values()}.values()
        self.remote = any(file.remote for file in self._files)
        self._prefetcher = _prefetcher() if self.remote else None

    def read(self, request: ReadRequest) -> FloatArray:
        return read_with_scale(self, request, self._decode)

    def check_readable(self, name: str) -> None:
        self._readable(name)

    def plan_reads(self, requests: Sequence[ReadRequest]) -> None:
        if self._prefetcher is not None:
            self._prefetcher.plan([spans for request in requests for spans in self._spans_of(request)])

    def stop(self) -> None:
        for file in self._files:
            if file.remote:  # a local file is never waited for, and another thread may be reading it
                file.close()

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self._prefetcher is not None:
            self._prefetcher.close()

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
        spans = [[(tensor.file, start, stop) for start, stop in tensor.spans(request)]]
        if (scale := scale_of(tensor.info, self.tensors)) is not None:
            spans += self._spans_of(ReadRequest(scale))
        return spans

    def _decode(self, request: ReadRequest) -> FloatArray:
        """Return the values of a request before FP8 scales are applied."""
        tensor = self._readable(request.name)
        spans = tensor.spans(request)
        if self._prefetcher is not None:
            self._prefetcher.wait_for([(tensor.file, start, stop) for start, stop in spans])
        assert tensor.codec is not None  # `_readable` raised otherwise
        out = np.empty(request.shape_in(tensor.info), np.float32)
        flat = out.reshape(-1)
        done = 0
        for start, stop in spans:
            count = (stop - start) // tensor.codec.unit * tensor.codec.values
            _decode_span(tensor, tensor.codec, start, stop, flat[done : done + count])
            done += count
        return out


def _prefetcher() -> RangePrefetcher:
    from attngeo.weights.sources.hub_files import RangePrefetcher  # late: local files do not need the hub

    return RangePrefetcher()


def _decode_span(tensor: StoredTensor, codec: Codec, start: int, stop: int, out: FloatArray) -> None:
    """Fill `out` [n] from bytes [start, stop), and check each chunk for finite values while it is in the cache."""
    step = max(CHUNK // codec.unit, 1) * codec.unit
    scratch: Bytes = np.empty(0 if codec.plain else min(step, stop - start), np.uint8)
    for at in range(start, stop, step):
        size = min(step, stop - at)
        first = (at - start) // codec.unit * codec.values
        part = out[first : first + size // codec.unit * codec.values]
        raw: Bytes = part.view(np.uint8) if codec.plain else scratch[:size]
        tensor.file.read_into(raw.data, at)
        if not codec.plain:
            codec.decode(raw, part)
        if not all_finite(part):
            before = (start - tensor.start) // codec.unit * codec.values + first
            raise nonfinite_error(tensor.info, part, before)


def nonfinite_error(info: TensorInfo, values: FloatArray, first: int) -> SourceError:
    """Return the error for a NaN or an infinity among flat values of a tensor, the first of which is at `first`."""
    bad = int(np.flatnonzero(~np.isfinite(values))[0])
    index = [int(i) for i in np.unravel_index(first + bad, info.shape)] if math.prod(info.shape) else []
    return SourceError(f"{info.file}: tensor {info.name!r} holds {values[bad]} at {index}, expected finite weights")
