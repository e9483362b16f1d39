"""The rows of the experiment on updates, one per head and step, as its files hold them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of results files, compressed or not, and of the `*.jsonl.xz` of folders."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl.xz")) if path.is_dir() else [path])]
    rows: list[Row] = []
    for file in files:
        data = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        rows += [json.loads(line) for line in data.decode("utf-8").splitlines()]
    return rows
