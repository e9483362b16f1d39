"""Read the documents of a corpus one at a time: text, JSONL or parquet files, compressed or not, or a hub data set."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import TextIOWrapper
from lzma import LZMAError
from pathlib import Path
from typing import IO

from attngeo.errors import InputError, first_line, reason
from attngeo.io.archive import parse_json

MAX_DOCUMENT = 1 << 20  # characters; a longer document is yielded in several pieces, so that memory stays bounded
_MAX_JSON_LINE = 1 << 28  # characters; a JSON line cannot be parsed in pieces
_SAMPLES, _SAMPLE = 64, 1 << 16  # number and bytes of the samples that identify a file
_DECOMPRESSORS = {".xz": "lzma", ".gz": "gzip", ".bz2": "bz2"}
_JSON_LINES = (".jsonl", ".ndjson", ".json")  # many data sets name their JSON lines .json


def documents(sources: Sequence[str], field: str = "text") -> Iterator[str]:
    """Yield every document of `sources`, in order. A source without any text is an error.

    sources: each one of
        a text file, plain or .xz, .gz, .bz2, with an empty line between documents
        a JSONL file, one object per line with the document in `field`
        a parquet file with the documents in the column `field`
        a data set on the hub, `hub:org/name[/config][@split]`, or in a folder, `hub:/folder@split`
    field: name of the field or column that contains the text

    >>> Path("corpus.txt").write_text("One document.\\n\\nAnother one,\\nof two lines.\\n") and None
    >>> list(documents(["corpus.txt"]))
    ['One document.', 'Another one,\\nof two lines.']
    """
    for source in sources:
        empty = True
        for text in _documents_of(source, field):
            empty = False
            yield text
        if empty:
            raise InputError(f"{source}: contains no text")


def check_sources(sources: Sequence[str]) -> None:
    """Raise if a file is missing or empty, before any work is done. Hub data sets are not checked."""
    for source in sources:
        if source.startswith("hub:"):
            continue
        if Path(source).is_dir():
            raise InputError(f"{source}: is a folder, expected a text file; name its files one by one")
        if not Path(source).is_file():
            raise InputError(f"{source}: no such text file")
        if not Path(source).stat().st_size:
            raise InputError(f"{source}: is empty, expected text")


def source_identity(source: str) -> str | list[str | int]:
    """Return what distinguishes a source from others, as JSON.

    A file is identified by its name, its size and a digest of samples from all over it, because it may be too large to
    be read twice. A hub data set is identified by its name.
    """
    if source.startswith("hub:"):
        return source
    path, digest = Path(source), hashlib.sha256()
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            for offset in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                file.seek(offset)
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    return [path.name, size, digest.hexdigest()]


def _documents_of(source: str, field: str) -> Iterator[str]:
    if source.startswith("hub:"):
        return _from_hub(source, field)
    path = Path(source)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _DECOMPRESSORS]
    if suffixes[-1:] == [".parquet"]:
        return _from_parquet(path, field)
    if suffixes and suffixes[-1] in _JSON_LINES:
        return _from_jsonl(path, field)
    return _from_text(path)


# ---- text and JSON lines


def _from_text(path: Path) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for line in _lines(path):
        if line.strip():
            lines.append(line)
            size += len(line)
        if lines and (not line.strip() or size >= MAX_DOCUMENT):
            yield "\n".join(lines)
            lines, size = [], 0
    if lines:
        yield "\n".join(lines)


def _from_jsonl(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path, _MAX_JSON_LINE), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not JSON ({first_line(error)})") from error
        yield from _pieces(record, field, f"{path}: line {number}")


def _lines(path: Path, longest: int = MAX_DOCUMENT) -> Iterator[str]:
    """Yield lines without line ends and byte order mark; a line of over `longest` characters is yielded in pieces."""
    number = 1
    try:
        with _open(path) as file, TextIOWrapper(file, "utf-8-sig") as text:
            while line := text.readline(longest):
                yield line.removesuffix("\n")
                number += line.endswith("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text, near line {number}") from error
    except (EOFError, OSError, LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read, near line {number} ({reason(error)})") from error


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    file: IO[bytes] = (import_module(_DECOMPRESSORS[suffix]).open if suffix in _DECOMPRESSORS else open)(path, "rb")
    return file


# ---- parquet and hub data sets


def _from_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(f"{path}: reading parquet needs pyarrow: pip install 'attngeo[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise InputError(f"{path}: no column {field!r}; its columns are {columns} (set text_field)")
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield from _pieces({field: value}, field, str(path))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({error})") from error


def _from_hub(source: str, field: str) -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{source}: hub data sets need the datasets library: pip install 'attngeo[data]'") from error
    name, _, split = source.removeprefix("hub:").partition("@")
    subset = ""
    if not name.startswith(("/", ".")):  # otherwise the name is a folder
        owner, name, subset = (*name.split("/", 2), "", "")[:3]
        name = f"{owner}/{name}" if name else owner
    try:
        for row in load_dataset(name, subset or None, split=split or "train", streaming=True):
            yield from _pieces(row, field, source)
    except InputError:
        raise
    except Exception as error:  # whatever the library, the network and the file formats behind it raise
        raise InputError(f"{source}: cannot be read ({first_line(error)})") from error


def _pieces(record: object, field: str, where: str) -> Iterator[str]:
    """Yield the text in `field` of a record, in pieces of at most MAX_DOCUMENT characters; blank ones are left out."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: is a {type(record).__name__}, expected an object with the field {field!r}")
    if field not in record:
        raise InputError(f"{where}: no field {field!r}; its fields are {', '.join(record)} (set text_field)")
    text = record[field]
    if text is None:
        return
    if not isinstance(text, str):
        raise InputError(f"{where}: field {field!r} is of type {type(text).__name__}, expected a string")
    for offset in range(0, len(text), MAX_DOCUMENT):
        if piece := text[offset : offset + MAX_DOCUMENT].strip():
            yield piece
