"""Where attngeo keeps what it fetched or computed: `ATTNGEO_CACHE`, or the platform's own cache folder."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_dir() -> Path:
    """The cache folder, looked up anew at every call; it may not exist yet."""
    if own := os.environ.get("ATTNGEO_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "attngeo"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attngeo"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "attngeo" / "Cache"
    return Path.home() / ".cache" / "attngeo"


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole or not at all, also with several processes writing the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
