"""Documents are read from every kind of source in bounded memory; errors name the place of what is not text."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from attngeo.errors import InputError
from attngeo.training.data.corpus import MAX_DOCUMENT, check_sources, documents

TEXTS = ["one two\nthree", "vier, fünf", "шесть", "seven"]
PLAIN = "\n\n".join(TEXTS).encode() + b"\n"


def parquet(texts: list[str | None], field: str = "text") -> bytes:
    """Return a parquet file with the texts in the column `field` and numbers in another column."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    buffer = io.BytesIO()
    write_table(pa.table({"other": list(range(len(texts))), field: texts}), buffer)
    return buffer.getvalue()


CONTENT = {
    "a.txt": PLAIN,
    "windows.txt": codecs.BOM_UTF8 + PLAIN.replace(b"\n", b"\r\n"),
    "a.txt.xz": lzma.compress(PLAIN),
    "a.txt.gz": gzip.compress(PLAIN),
    "a.txt.bz2": bz2.compress(PLAIN),
    "a.jsonl": "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode(),
    "A.JSON.GZ": gzip.compress("\n".join(json.dumps({"text": text}) for text in TEXTS).encode()),
    "a.parquet": parquet([*TEXTS, None, "  "]),
}


@pytest.mark.parametrize("name", CONTENT)
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENT[name])
    assert list(documents([str(tmp_path / name)])) == TEXTS


def test_sources_are_read_in_order_and_the_field_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "first"}\n\n{"body": "second"}\n')
    (tmp_path / "b.parquet").write_bytes(parquet(["third"], "body"))
    (tmp_path / "c.txt").write_text("\n\n")
    sources = [str(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.txt")]
    assert list(documents(sources[:2], "body")) == ["first", "second", "third"]
    with pytest.raises(InputError, match=r"c\.txt: contains no text"):
        list(documents(sources, "body"))


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl"])
def test_a_long_document_is_yielded_in_pieces_and_nothing_is_lost(tmp_path: Path, name: str) -> None:
    text = "0123456789" * (MAX_DOCUMENT // 4)  # one line of two and a half pieces
    (tmp_path / name).write_text(json.dumps({"text": text}) + "\n" if name.endswith("jsonl") else text)
    pieces = list(documents([str(tmp_path / name)]))
    assert len(pieces) == 3 and max(map(len, pieces)) <= MAX_DOCUMENT and "".join(pieces) == text


def test_memory_stays_bounded(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "large.txt.xz", "wb", preset=0) as file:
        for _ in range(60):
            file.write(b"the same words over and over " * 40_000 + b"\n\n")  # 70 MB in all
    tracemalloc.start()
    try:
        size = sum(map(len, documents([str(tmp_path / "large.txt.xz")])))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 69e6 and peak < 20e6


def test_hub_data_sets_are_read_with_splits_and_subsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder with the datasets library itself; of data sets on the hub, what it is asked for."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_bytes(CONTENT["a.jsonl"])
    (tmp_path / "set" / "test.jsonl").write_text('{"id": 1, "text": "of a folder"}\n')
    assert list(documents([f"hub:{tmp_path}/set"])) == TEXTS
    assert list(documents([f"hub:{tmp_path}/set@test"])) == ["of a folder"]
    with pytest.raises(InputError, match=r"set@nope: cannot be read \("):
        list(documents([f"hub:{tmp_path}/set@nope"]))
    asked: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> list[dict[str, str]]:
        asked.append((*names, options["split"]))
        return [{"text": "one"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(documents([f"hub:{name}" for name in ("org/name", "org/name@test", "org/name/other@train")])) == (
        ["one"] * 3
    )
    assert asked == [("org/name", None, "train"), ("org/name", None, "test"), ("org/name", "other", "train")]


BAD = {
    "blank.txt": (b"\n \n\n", "contains no text"),
    "latin.txt": ("größe".encode("latin-1"), "is not UTF-8 text, near line 1"),
    "no.xz": (PLAIN, "cannot be read, near line 1"),
    "no.gz": (PLAIN, "cannot be read, near line 1"),
    "cut.xz": (lzma.compress(PLAIN * 9)[:-30], "cannot be read, near line"),
    "list.jsonl": (b"[1]\n", "line 1: is a list, expected an object with the field 'text'"),
    "other.jsonl": (b'{"body": "a"}\n', "line 1: no field 'text'; its fields are body (set text_field)"),
    "number.jsonl": (b'{"text": 3}\n', "line 1: field 'text' is of type int, expected a string"),
    "array.json": (b'[{"text": "a"},\n{"text": "b"}]', "line 1 is not JSON"),
    "other.parquet": (parquet(["a"], "body"), "no column 'text'; its columns are other, body (set text_field)"),
    "no.parquet": (PLAIN, "cannot be read as parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_error_names_the_file_and_what_is_not_text(tmp_path: Path, name: str) -> None:
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(documents([str(tmp_path / name)]))
    assert str(caught.value).startswith(f"{tmp_path / name}: ") and expected in str(caught.value)


def test_missing_and_empty_files_are_reported_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    bad = {
        "none.txt": "no such text file",
        "": "is a folder, expected a text file",
        "empty.txt": "is empty, expected text",
    }
    for name, expected in bad.items():
        with pytest.raises(InputError, match=expected):
            check_sources([str(tmp_path / name)])
    check_sources(["hub:org/name"])
