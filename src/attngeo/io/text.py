"""Text files that a user names, and short names of models."""

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
