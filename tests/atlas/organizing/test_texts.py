"""Texts come from the lines of a file or the files of a folder; what cannot be used is one line about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngeo.atlas.organizing.texts import Text, read_texts
from attngeo.errors import InputError


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufefffirst\r\n\r\n  second \fpart\nfirst\n".encode())
    assert read_texts(path) == ["first", "second \fpart"]


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name, text in (("b.txt", "two\nlines\n"), ("a.txt", "one"), ("c.md", "other"), ("d.txt", " \n")):
        (tmp_path / name).write_text(text)
    assert read_texts(tmp_path) == ["one", "two\nlines"]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "no texts"),
        (b"\n \n", "no texts"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a\0b", "zero byte"),
        (None, "cannot be"),
    ],
)
def test_files_without_texts(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"texts\.txt: .*{message}"):
        read_texts(path)


def test_folders_without_texts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no \.txt files"):
        read_texts(tmp_path)
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(InputError, match="no texts, expected text in its files"):
        read_texts(tmp_path)


def test_openings() -> None:
    assert Text("short\ntext").opening == "short text"
    assert Text("word " * 100).opening == "word " * 11 + "word…" and Text("a").digest != Text("b").digest
