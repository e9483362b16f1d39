"""Results in one file each: named arrays and a line of JSON, or JSON alone; complete or not there at all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from attngeo.errors import InputError
from attngeo.io.atomic import atomic_file, check_writable, write_errors

ABOUT = "about"


def save_arrays(path: str | Path, kind: str, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write an .npz file."""
    text = json.dumps({"kind": kind, **about}, ensure_ascii=False)
    line = np.frombuffer(text.encode(), np.uint8)
    with _replacing(Path(path)) as file:
        np.savez(file, allow_pickle=False, **{ABOUT: line}, **arrays)
    return Path(path)


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the JSON of a file that `save_arrays` wrote for the same kind."""
    path = _existing(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays.pop(ABOUT).tobytes().decode())
        found = about["kind"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile):
        raise InputError(f"{path}: cut short or not a file of attngeo, expected a saved {kind}") from None
    _check_kind(path, found, kind)
    return arrays, about


def save_json(path: str | Path, kind: str, as_plain: Mapping[str, Any]) -> Path:
    """Write a JSON file, for results of a few numbers that other programs read too; NaN becomes null."""
    text = json.dumps({"kind": kind, **_plain(as_plain)}, ensure_ascii=False, indent=1, allow_nan=False)
    with _replacing(Path(path)) as file:
        file.write(text.encode())
    return Path(path)


def load_json(path: str | Path, kind: str) -> dict[str, Any]:
    """The content of a file that `save_words` wrote for the same kind."""
    path = _existing(path)
    try:
        as_plain: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = as_plain.pop("kind")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: cut short or not a file of attngeo, expected a saved {kind}") from None
    _check_kind(path, found, kind)
    return as_plain


def as_plain(result: Any) -> dict[str, Any]:
    """A dataclass as plain lists and mappings, NaN as None; results are equal where this is, NaN or not."""
    plain: dict[str, Any] = _plain(asdict(result))
    return plain


def required_array(arrays: Mapping[str, Any], name: str) -> Any:
    """An array that must be there."""
    if name not in arrays:
        raise InputError(f"the array {name} is missing")
    return arrays[name]


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """What is wrong with the content of a file is said with the name of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise InputError(f"{path}: is not as attngeo wrote it") from None


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    check_writable(path)
    with write_errors(path), atomic_file(path) as file:
        yield file


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    return path


def _check_kind(path: Path, found: Any, kind: str) -> None:
    if found != kind:
        raise InputError(f"{path}: holds a saved {found}, expected a saved {kind}")


def _plain(value: Any) -> Any:
    """Numbers, lists and mappings JSON knows."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(inner) for inner in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and not np.isfinite(value) else value
