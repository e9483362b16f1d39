"""Token files: a folder with `train.bin` and `valid.bin`, 16 bits per token, described by `tokens.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import InputError, first_line
from attngeo.io.archive import parse_json
from attngeo.training.data.wordpiece import SPECIAL

Part = Literal["train", "valid"]


@dataclass(frozen=True)
class Tokens:
    """Prepared token files. Each document is stored as [CLS] … [SEP], one document after the other."""

    folder: str
    vocabulary: int  # size of the tokenizer
    train: int  # number of tokens
    valid: int
    mask: int  # id of [MASK]
    special: tuple[int, ...]  # ids of [PAD] [UNK] [CLS] [SEP] [MASK]: never masked and never drawn as replacements
    digest: str  # of both token files and the tokenizer; a run continues only on tokens with the same digest

    def array(self, part: Part) -> NDArray[np.uint16]:
        """Return the token ids of `train` or `valid` as a read-only memory map, [tokens]."""
        if not getattr(self, part):
            return np.empty(0, np.uint16)  # an empty file cannot be mapped
        return np.memmap(Path(self.folder) / f"{part}.bin", np.uint16, "r")


def open_tokens(folder: Path) -> Tokens:
    """Return the token files that `prepare_tokens` wrote to `folder`."""
    try:
        facts = parse_json((folder / "tokens.json").read_bytes())
        tokens = Tokens(str(folder), **{**facts, "special": tuple(facts["special"])})
        sizes = {part: (folder / f"{part}.bin").stat().st_size for part in ("train", "valid")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder}: no prepared token files ({first_line(error)})") from error
    numbers = (tokens.vocabulary, tokens.train, tokens.valid, tokens.mask, *tokens.special)
    if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(tokens.digest, str):
        raise InputError(f"{folder}/tokens.json: expected whole numbers from 0 on and a digest")
    if len(tokens.special) != len(SPECIAL):
        raise InputError(f"{folder}/tokens.json: {len(tokens.special)} special tokens, expected {' '.join(SPECIAL)}")
    if max(tokens.mask, *tokens.special) >= tokens.vocabulary:
        raise InputError(f"{folder}/tokens.json: a special token is outside the vocabulary of {tokens.vocabulary}")
    for part, size in sizes.items():
        count = getattr(tokens, part)
        if size != 2 * count:
            raise InputError(f"{folder}/{part}.bin: has {size} bytes, expected {2 * count} for {count} tokens")
    return tokens
