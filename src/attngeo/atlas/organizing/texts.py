"""Texts that networks are organised on: one per line of a file, or one per .txt file of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attngeo.errors import InputError
from attngeo.io.files import read_text

OPENING = 60  # characters of a text that its rows repeat


@dataclass(frozen=True)
class Text:
    """One text.

    >>> Text("It is a truth universally acknowledged").digest
    '1e7936ec72c4'
    """

    content: str

    @property
    def digest(self) -> str:
        """Return a hash of the text, by which its rows name it."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:12]

    @property
    def opening(self) -> str:
        """Return the first words."""
        words = " ".join(self.content[: 4 * OPENING].split())
        return words if len(words) <= OPENING else words[: OPENING - 1].rstrip() + "…"


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """Return the texts of a file, one per line, or of a folder, one per .txt file; each text once, in order.

    >>> _ = Path("texts.txt").write_text("The first text.\\n\\nThe second text.\\n")
    >>> read_texts("texts.txt")
    ['The first text.', 'The second text.']
    """
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix == ".txt" and file.is_file())
        if not files:
            raise InputError(f"{path}: has no .txt files, expected one per text")
        found = [read_text(file).strip() for file in files]
    else:
        # Not splitlines(), which also splits at form feeds and other separators inside a paragraph.
        found = [line.strip() for line in read_text(path).replace("\r\n", "\n").split("\n")]
    texts = [text for text in dict.fromkeys(found) if text]
    if not texts:
        raise InputError(f"{path}: no texts, expected {'text in its files' if path.is_dir() else 'one per line'}")
    return texts


def checked_texts(texts: Iterable[str]) -> list[Text]:
    """Return texts that were given in Python, each once."""
    given = [texts] if isinstance(texts, str) else list(texts)
    for text in given:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts: found {text!r}, expected texts of at least a word")
    if not given:
        raise InputError("texts: none were given, expected at least one")
    return [Text(text) for text in dict.fromkeys(given)]
