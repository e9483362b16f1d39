"""Token files: a folder with `train.bin` and `valid.bin`, 16 bits per token, described by `tokens.json`.

`prepare_tokens` tokenises a corpus once; later calls with the same sources open what is there. The tokenizer is a
WordPiece tokenizer, trained on the corpus or read from a file, and saved so that transformers can load it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.io.archive import parse_json
from attngeo.io.files import atomic_file, folder_lock, remove_unfinished, write_file
from attngeo.io.progress import Progress
from attngeo.training.data.corpus import check_sources, documents, source_identity

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

Part = Literal["train", "valid"]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_VOCABULARY = 1 << 16  # token files hold 16-bit numbers
_log = logging.getLogger("attngeo")
_BATCH = 8 << 20  # characters tokenised together: enough to occupy every core, little memory
_HELD_OUT = 100  # every hundredth document is held out where no held-out text is named


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
    for part, size in sizes.items():
        count = getattr(tokens, part)
        if size != 2 * count:
            raise InputError(f"{folder}/{part}.bin: has {size} bytes, expected {2 * count} for {count} tokens")
    return tokens


def prepare_tokens(
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
    """Tokenise a corpus into `folder`, or open the token files that were prepared there from the same sources.

    train, valid: sources as `documents` reads them; without `valid` every hundredth document is held out
    tokenizer: "train", or the path of a tokenizer.json or of its folder
    vocabulary: size of a tokenizer that is trained, largest size of one that is given
    lowercase, field: see `train_tokenizer` and `documents`
    progress: called with (documents done, None)

    >>> Path("corpus.txt").write_text("\\n\\n".join(f"Document {i} of the corpus." for i in range(200))) and None
    >>> tokens = prepare_tokens(Path("tokens"), ["corpus.txt"], vocabulary=100)
    >>> tokens.array("train").dtype  # [tokens], token ids
    dtype('uint16')
    """
    if not train:
        raise InputError("no training text given (train = [...])")
    check_sources([*train, *valid])

    def parts() -> Iterator[tuple[Part, str]]:
        for number, document in enumerate(_split(train, valid, field), 1):
            if progress is not None and number % 256 == 0:
                progress(number, None)
            yield document

    request = _request(train, valid, tokenizer, vocabulary, lowercase, field)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, wait=True):  # paired runs may start together: one prepares, the others wait
            if not (folder / "tokens.json").is_file():
                _log.info("preparing tokens in %s", folder)
                remove_unfinished(folder)
                if tokenizer == "train":  # on the training text only
                    codec = train_tokenizer(
                        lambda: (text for part, text in parts() if part == "train"), vocabulary, lowercase=lowercase
                    )
                else:
                    codec = load_tokenizer(Path(tokenizer), vocabulary)
                facts = _write(folder, codec, parts(), tokenizer)
                save_tokenizer(codec, folder)
                write_file(folder / "asked.json", request.encode())
                # Written last: where it exists, all other files are complete.
                write_file(folder / "tokens.json", json.dumps(facts, indent=2).encode())
    except OSError as error:
        raise AttngeoError(f"{folder}: token files cannot be written ({error.strerror or error})") from error
    if not (folder / "asked.json").is_file() or (folder / "asked.json").read_text() != request:
        advice = "name another folder (tokens), or delete it"
        raise InputError(f"{folder}: holds tokens of another corpus or tokenizer; {advice}")
    return open_tokens(folder)


def _request(
    train: Sequence[str], valid: Sequence[str], tokenizer: str, vocabulary: int, lowercase: bool, field: str
) -> str:
    """Return what the files are made from, as JSON, so that they are not taken for those of another corpus."""
    settings: tuple[object, ...] = (tokenizer, vocabulary, lowercase, field)
    if tokenizer != "train":  # a given tokenizer is identified by its content and has a size of its own
        file = tokenizer_file(Path(tokenizer))
        settings = (hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else tokenizer, lowercase, field)
    return json.dumps([list(map(source_identity, train)), list(map(source_identity, valid)), *settings])


def _split(train: Sequence[str], valid: Sequence[str], field: str) -> Iterator[tuple[Part, str]]:
    """Yield ("train" or "valid", document) for every document, in order."""
    for number, text in enumerate(documents(train, field), 1):
        yield ("valid" if not valid and number % _HELD_OUT == 0 else "train"), text
    for text in documents(valid, field):
        yield "valid", text


def _write(folder: Path, codec: Tokenizer, parts: Iterable[tuple[Part, str]], name: str) -> dict[str, Any]:
    """Write both token files; return the fields of `Tokens`, with the digest of the tokenizer and all tokens."""
    counts = {"train": 0, "valid": 0}
    unknown, unknown_id = 0, codec.token_to_id("[UNK]")
    digest = hashlib.sha256(codec.to_str().encode())
    with ExitStack() as stack:
        files = {part: stack.enter_context(atomic_file(folder / f"{part}.bin")) for part in counts}
        for batch in _batches(parts):
            encodings = codec.encode_batch_fast([text for _, text in batch])
            for (part, _), encoding in zip(batch, encodings, strict=True):
                ids = np.asarray(encoding.ids, np.uint16)  # [tokens of the document]
                files[part].write(ids.tobytes())
                digest.update(ids.tobytes())
                counts[part] += len(ids)
                unknown += int(np.count_nonzero(ids == unknown_id))
        total = sum(counts.values())
        if 2 * unknown > total:
            raise InputError(f"{name}: {unknown} of {total} tokens of this text are [UNK]; "
                             "expected a tokenizer that knows its letters")  # fmt: skip
    return {
        "vocabulary": vocabulary_size(codec),
        **counts,
        "mask": codec.token_to_id("[MASK]"),
        "special": [codec.token_to_id(token) for token in SPECIAL],
        "digest": digest.hexdigest()[:16],
    }


def _batches(parts: Iterable[tuple[Part, str]]) -> Iterator[list[tuple[Part, str]]]:
    """Yield documents in lists of about _BATCH characters."""
    batch: list[tuple[Part, str]] = []
    size = 0
    for part, text in parts:
        batch.append((part, text))
        size += len(text)
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---- the tokenizer


def train_tokenizer(texts: Callable[[], Iterable[str]], vocabulary: int, *, lowercase: bool = True) -> Tokenizer:
    """Return a WordPiece tokenizer with at most `vocabulary` tokens, [PAD] [UNK] [CLS] [SEP] [MASK] first.

    texts: called twice, once to count letters and once to learn words. The same texts give the same tokenizer.
    lowercase: whether text is lowercased before it is tokenised
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    # Rare letters are left out, so that a document in many scripts does not fill the vocabulary with single letters.
    letters = _commonest_letters(texts(), normalizer, max(1, vocabulary // 8))
    # The trainer numbers letters inside words in the order it meets them, which is not fixed, and breaks ties by those
    # numbers. Letters that are named beforehand keep their numbers.
    fixed = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=fixed,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(texts(), trainer)
    # A second tokenizer with the same vocabulary: in the first one every letter is a special token.
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def _commonest_letters(texts: Iterable[str], normalizer: Normalizer, count: int) -> list[str]:
    """Return the `count` commonest characters of the normalised texts, sorted."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    letters: Counter[str] = Counter()
    for character, times in characters.items():
        for letter in normalizer.normalize_str(character):
            if not letter.isspace():
                letters[letter] += times
    return sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:count])


def load_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, or of the folder that contains one.

    It must have the tokens of SPECIAL and at most `vocabulary` tokens.
    """
    from tokenizers import Tokenizer

    file = tokenizer_file(path)
    if not file.is_file():
        raise InputError(f"{path}: no tokenizer.json there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises plain Exceptions
        raise InputError(f"{file}: not a tokenizer ({first_line(error)})") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise InputError(f"{file}: has no {' '.join(missing)}; pre-training needs {' '.join(SPECIAL)}")
    size = vocabulary_size(tokenizer)
    if size > vocabulary:
        raise InputError(f"{file}: {size} tokens do not fit a model with vocab = {vocabulary}")
    # A tokenizer that was saved for a model truncates and pads rows; token files hold whole documents.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file(path: Path) -> Path:
    """Return the path of tokenizer.json where `path` is a folder, else `path` itself."""
    return path / "tokenizer.json" if path.is_dir() else path


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of rows an embedding needs: the largest id plus one, because ids may leave gaps."""
    return 1 + int(max(tokenizer.get_vocab().values()))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as `AutoTokenizer.from_pretrained` expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "tokenizer.json", tokenizer.to_str().encode())
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {
        **dict(zip(names, SPECIAL, strict=True)),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,  # to which a text is truncated on request; a model saved with it states its own
    }
    write_file(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode())
