"""Files that are either complete or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attngeo.errors import AttngeoError


def check_writable(path: Path) -> None:
    """Raise if `path` could not be written, before the work that would fill it is done."""
    if not path.parent.is_dir():
        raise AttngeoError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise AttngeoError(f"{path}: is a folder, expected a file name")
    if not os.access(path.parent, os.W_OK):
        raise AttngeoError(f"{path}: the folder {path.parent} cannot be written to")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses inside, as one line about `path`."""
    try:
        yield
    except OSError as error:
        raise AttngeoError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write `path` at once: a crash halfway leaves what was there before."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
