"""Text files that a user names, short names of models, and numbers of bytes for people."""

from __future__ import annotations

import os
from pathlib import Path

from attngeo.errors import InputError


def read_text(path: Path) -> str:
    """Return the text in a UTF-8 file, without a byte order mark; InputError in one line where it is none."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    if "\0" in text:
        raise InputError(f"{path}: contains a zero byte; expected UTF-8 text, found binary data")
    return text


def short_name(model: str | os.PathLike[str]) -> str:
    """Return the last two parts of a model's path or hub id, for labels and to match the results of one model.

    >>> short_name("/home/me/models/bert/model/"), short_name("org/name"), short_name("/model")
    ('bert/model', 'org/name', 'model')
    """
    text = os.path.normpath(os.fspath(model)) if model else ""
    return "/".join(part for part in text.replace(os.sep, "/").split("/")[-2:] if part)


def byte_text(count: float) -> str:
    """Return a number of bytes for people.

    >>> byte_text(999), byte_text(3_400_000), byte_text(2.5e12)
    ('999 bytes', '3.4 MB', '2500.0 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(((size, unit) for size, unit in ((1e3, "kB"), (1e6, "MB")) if count < 1e3 * size), (1e9, "GB"))
    return f"{count / size:.1f} {unit}"
