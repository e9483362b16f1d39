"""Results in one file each: named arrays and a line of JSON, complete or not there at all."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.errors import AttngeoError, InputError

ABOUT = "about"


def save_arrays(path: str | Path, kind: str, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write an .npz file under a passing name, then move it into place."""
    path = Path(path)
    if not path.parent.is_dir():
        raise AttngeoError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise AttngeoError(f"{path}: is a folder, expected a file name")
    text = json.dumps({"kind": kind, **about}, ensure_ascii=False)
    line = np.frombuffer(text.encode(), np.uint8)
    try:
        handle, passing = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise AttngeoError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **{ABOUT: line}, **arrays)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(passing, 0o666 & ~mask)
        os.replace(passing, path)
    except BaseException as error:
        os.unlink(passing)
        if isinstance(error, OSError):
            raise AttngeoError(f"{path}: cannot be written ({error.strerror})") from None
        raise
    return path


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the JSON of a file that `save_arrays` wrote for the same kind."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays.pop(ABOUT).tobytes().decode())
        found = about["kind"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile):
        raise InputError(f"{path}: cut short or not a file of attngeo, expected a saved {kind}") from None
    if found != kind:
        raise InputError(f"{path}: holds a saved {found}, expected a saved {kind}")
    return arrays, about


def part(arrays: Mapping[str, Any], name: str, path: str | Path) -> Any:
    """An array that must be there."""
    if name not in arrays:
        raise InputError(f"{path}: the array {name} is missing")
    return arrays[name]
