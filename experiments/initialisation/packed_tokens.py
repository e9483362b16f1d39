"""Token files made small enough to travel, and back."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from attngeo.dynamics.data.tokens import Tokens
from attngeo.errors import InputError
from attngeo.io.lock import folder_lock

_PARTS = 16  # unpacked at the same time
_SMALL = ("tokens.json", "asked.json", "tokenizer.json", "tokenizer_config.json", "valid.bin")
# 16-bit words: the coder predicts from the position within a word
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1}]


def pack(tokens: Tokens, folder: Path) -> int:
    """Write the token files of `tokens` compressed into `folder`; returns the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SMALL:
        shutil.copyfile(Path(tokens.folder) / name, folder / name)
    for number, part in enumerate(np.array_split(tokens.array("train"), _PARTS)):
        (folder / f"train.{number:02d}.xz").write_bytes(lzma.compress(part.tobytes(), filters=_FILTERS))
    return sum(file.stat().st_size for file in folder.iterdir())


def unpacked(folder: Path) -> Path:
    """The folder itself where it holds plain token files, or a temporary one with what was packed in it."""
    parts = sorted(folder.glob("train.*.xz"))
    if (folder / "train.bin").exists() or not parts:
        return folder
    try:
        # Under a name of their own: another process may be reading other tokens.
        name = hashlib.sha256((folder / "tokens.json").read_bytes()).hexdigest()[:16]
        into = Path(tempfile.gettempdir()) / f"attngeo-tokens-{name}"
        into.mkdir(parents=True, exist_ok=True)
        with folder_lock(into, wait=True):
            if not (into / "tokens.json").exists():
                _unpack(folder, parts, into)
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{folder}: packed tokens cannot be unpacked ({error})") from error
    return into


def _unpack(folder: Path, parts: Sequence[Path], into: Path) -> None:
    with ThreadPoolExecutor() as pool, open(into / "train.bin", "wb") as file:  # lzma works outside the GIL
        for piece in pool.map(lambda part: lzma.decompress(part.read_bytes()), parts):
            file.write(piece)
    for name in reversed(_SMALL):  # tokens.json last: it says the rest is there
        shutil.copyfile(folder / name, into / name)
