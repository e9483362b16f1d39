"""Text files that a user names."""

from __future__ import annotations

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
