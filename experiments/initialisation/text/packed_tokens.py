"""Compress token files, so that they can be copied to the machine that trains, and decompress them there."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from attngeo.errors import InputError
from attngeo.io.files import atomic_file, cache_dir, folder_lock, write_errors, write_file
from attngeo.training.data.tokens import Tokens

_PARTS = 16  # decompressed at the same time
_SMALL_FILES = ("tokens.json", "asked.json", "tokenizer.json", "tokenizer_config.json", "valid.bin")
# Tokens are 16-bit words: the coder predicts from the position within a word.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1}]


def pack(tokens: Tokens, folder: Path) -> int:
    """Write the token files compressed into `folder` and return their size in bytes."""
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in _SMALL_FILES:
            write_file(folder / name, (Path(tokens.folder) / name).read_bytes())
        for number, part in enumerate(np.array_split(tokens.array("train"), _PARTS)):
            write_file(folder / f"train.{number:02d}.xz", lzma.compress(part.tobytes(), filters=_FILTERS))
        return sum(file.stat().st_size for file in folder.iterdir())


def unpacked(folder: Path) -> Path:
    """Return a folder of plain token files: `folder` itself, or one in the cache with its content decompressed."""
    parts = sorted(folder.glob("train.*.xz"))
    if (folder / "train.bin").exists() or not parts:
        return folder
    try:
        # The folder is named after the tokens, because another process may be reading other tokens.
        name = hashlib.sha256((folder / "tokens.json").read_bytes()).hexdigest()[:16]
        into = cache_dir() / "tokens" / name
        into.mkdir(parents=True, exist_ok=True)
        with folder_lock(into, wait=True):
            if not (into / "tokens.json").exists():
                _unpack(folder, parts, into)
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{folder}: packed tokens cannot be unpacked ({error})") from error
    return into


def _unpack(folder: Path, parts: Sequence[Path], into: Path) -> None:
    with ThreadPoolExecutor() as pool, atomic_file(into / "train.bin") as file:  # lzma releases the GIL
        for piece in pool.map(lambda part: lzma.decompress(part.read_bytes()), parts):
            file.write(piece)
    for name in reversed(_SMALL_FILES):  # tokens.json last: where it exists, all other files are complete
        write_file(into / name, (folder / name).read_bytes())
