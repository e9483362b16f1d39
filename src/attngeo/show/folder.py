"""Folders that are either complete or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attngeo.errors import AttngeoError


def check_new_folder(path: Path) -> None:
    """Raise if `path` could not become a folder of results, before the work that would fill it is done."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise AttngeoError(f"{path}: the folder {parent} does not exist")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AttngeoError(f"{path}: exists already, expected a new or an empty folder")
    if not os.access(parent, os.W_OK):
        raise AttngeoError(f"{path}: the folder {parent} cannot be written to")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """`with whole_folder(out) as folder:` fill `folder`; it becomes `out` at the end, or vanishes on an error."""
    check_new_folder(path)
    passing = Path(tempfile.mkdtemp(dir=path.absolute().parent, prefix=f".{path.name}."))
    try:
        yield passing
        mask = os.umask(0)
        os.umask(mask)
        passing.chmod(0o777 & ~mask)
        os.replace(passing, path)
    except BaseException as error:
        shutil.rmtree(passing, ignore_errors=True)
        if isinstance(error, OSError):
            raise AttngeoError(f"{path}: cannot be written ({error.strerror or error})") from error
        raise
