"""Several processes work on one grid: each run belongs to one of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attngeo.errors import AttngeoError
from attngeo.io.files import folder_lock


@contextmanager
def claim(work: Path, key: str) -> Iterator[bool]:
    """Keep a run from other processes inside the context; gives False where another process has it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as work, claim(Path(work), "run") as first, claim(Path(work), "run") as second:
    ...     print(first, second)
    True False
    """
    folder = work / f"{key}.claim"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder))
        except (AttngeoError, FileNotFoundError):  # held, or just given back: by then its run is among the finished
            yield False
            return
        try:
            yield True
        finally:
            shutil.rmtree(folder, ignore_errors=True)
