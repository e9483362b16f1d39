"""Documents of a corpus, one at a time: text, JSONL or parquet files, compressed or not, or a data set on the hub."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from attngeo.errors import InputError, first_line

LONGEST = 1 << 20  # characters; a document beyond this is read as several, so that memory stays bounded
_LONGEST_LINE = 1 << 28  # characters of a JSON line, which cannot be read in pieces
_CHUNK = 1 << 20  # bytes read at a time
_BLOCKS, _BLOCK = 64, 1 << 16  # of a file, and their bytes, by which it is known again
_PACKED = {".xz": "lzma", ".gz": "gzip", ".bz2": "bz2"}


def documents(sources: Sequence[str], field: str = "text") -> Iterator[str]:
    """Every document of `sources` in order.

    A text file (.xz, .gz, .bz2 or plain) has an empty line between documents; a JSONL file one object a line with the
    document under `field`; a parquet file or a data set (`hub:org/name[/config][@split]`, or the folder of one:
    `hub:/folder@split`) a column of that name. A source without any text is an error.

    >>> for text in documents(["corpus.txt.xz", "more.jsonl", "hub:org/name@train"]):
    ...     print(text[:40])
    """
    for source in sources:
        nothing = True
        for text in _documents(source, field):
            nothing = False
            yield text
        if nothing:
            raise InputError(f"{source}: no text in it")


def check_sources(sources: Sequence[str]) -> None:
    """Raise before any work if a file is missing or empty."""
    for source in sources:
        if source.startswith("hub:"):
            continue
        if Path(source).is_dir():
            raise InputError(f"{source}: a folder, expected a text file; several can be named")
        if not Path(source).is_file():
            raise InputError(f"{source}: no such text file")
        if not Path(source).stat().st_size:
            raise InputError(f"{source}: is empty, expected text")


def known_by(source: str) -> Any:
    """What tells a source from others: a file by name, size and blocks from all over it, for it may be too large to be
    read twice; a data set by its name."""
    if source.startswith("hub:"):
        return source
    path, seen = Path(source), hashlib.sha256()
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            for place in range(0, size, max(_BLOCK, size // _BLOCKS)):
                file.seek(place)
                seen.update(file.read(_BLOCK))
    except OSError as error:
        raise _unreadable(path, error) from error
    return [path.name, size, seen.hexdigest()]


def _documents(source: str, field: str) -> Iterator[str]:
    if source.startswith("hub:"):
        return _hub(source, field)
    path = Path(source)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    if suffixes[-1:] == [".parquet"]:
        return _parquet(path, field)
    if suffixes[-1:] in ([".jsonl"], [".ndjson"], [".json"]):  # many data sets call their JSON lines .json
        return _jsonl(path, field)
    return _text(path)


def _open(path: Path) -> IO[bytes]:
    from importlib import import_module

    try:
        if path.suffix.lower() in _PACKED:
            opened: IO[bytes] = import_module(_PACKED[path.suffix.lower()]).open(path, "rb")
            return opened
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror or error})")


def _lines(path: Path, longest: int = LONGEST) -> Iterator[str]:
    """Lines without their ends; a longer one than `longest` comes in pieces. Anything but UTF-8 text is refused."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    rest, position = "", 0
    with _open(path) as file:
        while True:
            try:
                chunk = file.read(_CHUNK)
            except (OSError, EOFError, ValueError) as error:
                raise InputError(f"{path}: broken after {position} unpacked bytes ({error})") from error
            except Exception as error:  # lzma and zlib have error classes of their own
                raise InputError(f"{path}: not a {path.suffix} file, or broken ({error})") from error
            if b"\0" in chunk:
                raise InputError(f"{path}: byte {position + chunk.index(0)} is zero: binary data, UTF-8 text expected")
            try:
                text = rest + decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = position + len(chunk) - len(error.object) + error.start  # the decoder may hold bytes from before
                raise InputError(f"{path}: byte {at} is not UTF-8 text") from error
            position += len(chunk)
            *whole, rest = text.split("\n")
            yield from (line.rstrip("\r") for line in whole)
            if not chunk:
                if rest:
                    yield rest
                return
            while len(rest) > longest:
                yield rest[:longest]
                rest = rest[longest:]


def _text(path: Path) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in _lines(path):
        if line.strip():
            held.append(line)
            size += len(line)
        if held and (not line.strip() or size >= LONGEST):
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)


def _jsonl(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path, _LONGEST_LINE), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number} is not JSON ({error.msg})") from error
        yield from _pieces(record, field, f"{path}: line {number}")


def _parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(f"{path}: parquet needs pyarrow: pip install 'attngeo[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise InputError(f"{path}: no column {field!r}; it has {columns} (set text_field)")
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield from _pieces({field: value}, field, str(path))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({error})") from error


def _hub(source: str, field: str) -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{source}: data sets need the datasets library: pip install 'attngeo[data]'") from error
    name, _, split = source.removeprefix("hub:").partition("@")
    subset = ""
    if not name.startswith(("/", ".")):  # else a folder
        owner, name, subset = (*name.split("/", 2), "", "")[:3]
        name = f"{owner}/{name}" if name else owner
    try:
        for row in load_dataset(name, subset or None, split=split or "train", streaming=True):
            yield from _pieces(row, field, source)
    except InputError:
        raise
    except Exception as error:  # whatever the library, the network and the file formats behind it raise
        raise InputError(f"{source}: cannot be read ({first_line(error)})") from error


def _pieces(record: Any, field: str, where: str) -> Iterator[str]:
    if not isinstance(record, dict) or field not in record:
        keys = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise InputError(f"{where}: no {field!r}; it has {keys} (set text_field)")
    text = record[field]
    if text is None:
        return
    if not isinstance(text, str):
        raise InputError(f"{where}: {field!r} is a {type(text).__name__}, expected text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can write half a pair, of which no tokenizer makes anything
        raise InputError(f"{where}: {field!r} holds \\u{ord(text[error.start]):04x}, half a character") from error
    for start in range(0, len(text), LONGEST):
        if piece := text[start : start + LONGEST].strip():
            yield piece
