"""A corpus as packed token files: `train.bin` and `valid.bin`, 16 bits a token, prepared once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.dynamics.data.corpus import check_sources, documents, known_by
from attngeo.dynamics.data.wordpiece import SPECIAL, load_tokenizer, save_tokenizer, train_tokenizer, vocabulary_size
from attngeo.errors import AttngeoError, InputError
from attngeo.io.atomic import write_file
from attngeo.io.lock import folder_lock

_log = logging.getLogger("attngeo")
_AT_ONCE = 8 << 20  # characters tokenised together: enough for every core, little memory
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Tokens:
    """Prepared token files: each document is [CLS] … [SEP], one after the other."""

    folder: str
    vocabulary: int  # of the tokenizer
    train: int  # tokens
    valid: int
    mask: int  # id of [MASK]
    special: tuple[int, ...]  # ids that are never masked and never drawn
    digest: str  # of both token files and the tokenizer: what a run must find again to continue

    def array(self, part: str) -> np.ndarray[Any, np.dtype[np.uint16]]:
        """`train` or `valid` as a read-only map of the file, [tokens]."""
        if not getattr(self, part):
            return np.empty(0, np.uint16)  # an empty file cannot be mapped
        return np.memmap(Path(self.folder) / f"{part}.bin", np.uint16, "r")


def open_tokens(folder: Path) -> Tokens:
    """Token files prepared before."""
    try:
        facts = json.loads((folder / "tokens.json").read_text())
        tokens = Tokens(str(folder), **{**facts, "special": tuple(facts["special"])})
        sizes = {part: (folder / f"{part}.bin").stat().st_size // 2 for part in ("train", "valid")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder}: no prepared token files ({error})") from error
    for part, size in sizes.items():
        if size != getattr(tokens, part):
            raise InputError(f"{folder}/{part}.bin: {size} tokens, {getattr(tokens, part)} expected")
    return tokens


def prepare(
    folder: Path,
    train: Sequence[str],
    valid: Sequence[str] = (),
    *,
    tokenizer: str = "train",
    vocabulary: int = 16_384,
    lowercase: bool = True,
    field: str = "text",
    progress: Progress | None = None,
) -> Tokens:
    """Tokenise a corpus into `folder`, or open what was prepared there from the same sources.

    train, valid  sources as `documents` reads them; without `valid` every hundredth document is held out
    tokenizer     "train", or a tokenizer.json or its folder
    vocabulary    size of a trained tokenizer
    progress      called with (documents done, None)
    """
    if not train:
        raise InputError("no training text given (train = [...])")
    check_sources([*train, *valid])
    asked = _asked(train, valid, tokenizer, vocabulary, lowercase, field)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, wait=True):  # paired runs may be started together: one prepares, the others wait
            if not (folder / "tokens.json").is_file():
                _log.info("preparing tokens in %s", folder)
                facts = _prepared(folder, train, valid, tokenizer, vocabulary, lowercase, field, progress)
                write_file(folder / "asked.json", asked.encode())
                write_file(folder / "tokens.json", json.dumps(facts, indent=2).encode())  # last: the rest is there
    except OSError as error:
        raise AttngeoError(f"{folder}: token files cannot be written ({error.strerror or error})") from error
    if not (folder / "asked.json").is_file() or (folder / "asked.json").read_text() != asked:
        raise InputError(f"{folder}: holds tokens of another corpus or tokenizer; name another folder or delete it")
    return open_tokens(folder)


def _prepared(
    folder: Path,
    train: Sequence[str],
    valid: Sequence[str],
    tokenizer: str,
    vocabulary: int,
    lowercase: bool,
    field: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the token files and the tokenizer; what `tokens.json` says of them."""

    def parts() -> Iterator[tuple[str, str]]:
        for number, found in enumerate(_parts(train, valid, field), 1):
            if progress is not None and number % 256 == 0:
                progress(number, None)
            yield found

    if tokenizer == "train":  # it sees the training text only
        codec = train_tokenizer(
            lambda: (text for part, text in parts() if part == "train"), vocabulary, lowercase=lowercase
        )
    else:
        codec = load_tokenizer(Path(tokenizer), vocabulary)
    counts, unknown, digest = _write(folder, codec, parts())
    if 2 * unknown > sum(counts.values()):
        raise InputError(f"{tokenizer}: {unknown} of {sum(counts.values())} tokens of this text are [UNK]; "
                         "a tokenizer that knows its letters is needed")  # fmt: skip
    save_tokenizer(codec, folder, 512)
    return {
        "vocabulary": vocabulary_size(codec),
        "train": counts["train"],
        "valid": counts["valid"],
        "mask": codec.token_to_id("[MASK]"),
        "special": [codec.token_to_id(token) for token in SPECIAL],
        "digest": digest,
    }


def _asked(train: Sequence[str], valid: Sequence[str], tokenizer: str, *rest: Any) -> str:
    """What the files were made from, so that they are not taken for another corpus."""
    if tokenizer != "train":
        rest = rest[1:]  # the size is the tokenizer's own
        file = Path(tokenizer) / "tokenizer.json" if Path(tokenizer).is_dir() else Path(tokenizer)
        tokenizer = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else tokenizer
    return json.dumps([[known_by(s) for s in train], [known_by(s) for s in valid], tokenizer, *rest])


def _parts(train: Sequence[str], valid: Sequence[str], field: str) -> Iterator[tuple[str, str]]:
    """("train" or "valid", document), in order."""
    for number, text in enumerate(documents(train, field)):
        yield ("valid" if not valid and number % 100 == 99 else "train"), text
    for text in documents(valid, field):
        yield "valid", text


def _write(folder: Path, codec: Any, parts: Iterable[tuple[str, str]]) -> tuple[dict[str, int], int, str]:
    """Tokens in each file, how many are [UNK], and a digest of all.

    A kill leaves parts behind that the next try overwrites.
    """
    counts, unknown = {"train": 0, "valid": 0}, 0
    nothing = codec.token_to_id("[UNK]")
    seen = hashlib.sha256(codec.to_str().encode())
    temporary = {part: folder / f".{part}.bin.part" for part in counts}
    try:
        with ExitStack() as stack:
            files = {part: stack.enter_context(open(path, "wb")) for part, path in temporary.items()}
            for batch in _batches(parts):
                coded = codec.encode_batch_fast([text for _, text in batch])
                for (part, _), encoding in zip(batch, coded, strict=True):
                    ids = np.asarray(encoding.ids, np.uint16)
                    files[part].write(ids.tobytes())
                    seen.update(ids.tobytes())
                    counts[part] += len(ids)
                    unknown += int(np.count_nonzero(ids == nothing))
        for part, path in temporary.items():
            os.replace(path, folder / f"{part}.bin")
    except BaseException:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        raise
    return counts, unknown, seen.hexdigest()[:16]


def _batches(parts: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    held: list[tuple[str, str]] = []
    size = 0
    for part, text in parts:
        held.append((part, text))
        size += len(text)
        if size > _AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held
