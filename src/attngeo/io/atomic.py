"""Write files and folders atomically: each appears complete, or not at all.

Content goes to a temporary file (or folder) in the same directory, which is renamed when it is complete. A crash
halfway leaves what was there before, and several processes may write the same path.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attngeo.errors import AttngeoError


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the context ends without an error.

    durable: force the content to disk before the rename, for files that must survive a power failure.
    """
    temporary = _temporary(path)
    with open(temporary, "xb") as file:
        try:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
            file.close()
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink()
            raise


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the context ends without an error, and vanishes otherwise.

    `path` must not exist, or be an empty folder.
    """
    check_new_folder(path)
    with write_errors(path):
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError raised inside into an AttngeoError of one line about `path`."""
    try:
        yield
    except OSError as error:
        raise AttngeoError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_writable(path: Path) -> None:
    """Raise if the file `path` could not be written, before the work that produces its content."""
    if path.is_dir():
        raise AttngeoError(f"{path}: is a folder, expected a file name")
    _check_parent(path, path.parent)


def check_new_folder(path: Path) -> None:
    """Raise if `path` could not become a folder of results, before the work that produces its content."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AttngeoError(f"{path}: exists already, expected a new or an empty folder")
    _check_parent(path, path.absolute().parent)


def _check_parent(path: Path, parent: Path) -> None:
    if not parent.is_dir():
        raise AttngeoError(f"{path}: the folder {parent} does not exist")
    if not os.access(parent, os.W_OK):
        raise AttngeoError(f"{path}: the folder {parent} cannot be written to")


def _temporary(path: Path) -> Path:
    """Return an unused name beside `path`; a file made under it gets the permissions of an ordinary file."""
    return path.absolute().parent / f".part-{secrets.token_hex(8)}"
