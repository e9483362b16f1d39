"""The cache folder: `ATTNGEO_CACHE`, or `attngeo` in the platform's own cache folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attngeo.io.atomic import atomic_file


def cache_dir() -> Path:
    """Return the cache folder, which may not exist yet; the environment is read at every call."""
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
def cache_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of the cache for writing, atomically; its folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        yield file
